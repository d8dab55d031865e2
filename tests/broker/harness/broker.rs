//! A broker's process with its own data directory and port.
//!
//! With `KURING_TEST_BROKER=kafka` in the environment every test gets a real Apache Kafka instead, through
//! `tests/clients/kafka-real`: that is how the expected values of these tests were found. Properties that start
//! with `kuring.` are then left out.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::PATIENCE;

const LOG_LINES_SHOWN: usize = 60;

/// Set for a run in which connections live on shard 0 alone and nearly all partitions on other shards.
pub const OFF_OWNER: &str = "KURING_TEST_OFF_OWNER";

/// Of so many shards the first owns one partition in fifteen.
const OFF_OWNER_SHARDS: &str = "8";

pub fn off_owner() -> bool {
    std::env::var_os(OFF_OWNER).is_some()
}

pub struct Broker {
    process: Option<Process>,
    prefix: Vec<String>,
    directory: TempDir,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    shards: usize,
    bootstrap: String,
    ready_line: String,
    stands_still: AtomicBool,
    log: Log,
}

enum Process {
    Kuring(Child),
    Kafka,
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Broker {
    /// Two shards and the defaults.
    pub fn start() -> Self {
        Self::with(2, &[])
    }

    /// `settings` are broker properties; a `~` in a value stands for the broker's own temporary directory.
    pub fn with(shards: usize, settings: &[(&str, &str)]) -> Self {
        let mut broker = Self::stopped(shards, settings);
        broker.launch();
        broker
    }

    /// The same, started by the command `prefix`, which ends by executing what follows it.
    pub fn behind(prefix: &[String], shards: usize, settings: &[(&str, &str)]) -> Self {
        let mut broker = Self::stopped(shards, settings);
        let own = broker.directory.path().to_string_lossy().into_owned();
        broker.prefix = prefix.iter().map(|word| word.replace('~', &own)).collect();
        broker.launch();
        broker
    }

    /// As [`Self::with`], to be started by [`Self::start_again`].
    pub fn stopped(shards: usize, settings: &[(&str, &str)]) -> Self {
        let directory =
            tempfile::Builder::new().prefix("kuring-test-").tempdir().expect("a temporary directory");
        let own = directory.path().to_string_lossy().into_owned();
        let settings =
            settings.iter().map(|(name, value)| (name.to_string(), value.replace('~', &own))).collect();
        Self {
            process: None,
            prefix: Vec::new(),
            directory,
            settings,
            environment: Vec::new(),
            shards,
            bootstrap: String::new(),
            ready_line: String::new(),
            stands_still: AtomicBool::new(false),
            log: Log::default(),
        }
    }

    /// Sets a variable for the starts to come.
    pub fn set_environment(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_string(), value.to_string()));
    }

    /// Has another property in place of `name` for the starts to come.
    pub fn replace_setting(&mut self, name: &str, by: (&str, &str)) {
        self.settings.retain(|(known, _)| known != name);
        self.settings.push((by.0.to_string(), by.1.to_string()));
    }

    pub fn is_kafka() -> bool {
        std::env::var("KURING_TEST_BROKER").is_ok_and(|name| name == "kafka")
    }

    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> &str {
        let after = self.ready_line.split_once(" admin ").map(|(_, after)| after);
        after.and_then(|after| after.split(',').next()).unwrap_or_else(|| panic!("{}", self.ready_line))
    }

    /// What kuring printed when it was ready.
    pub fn ready_line(&self) -> &str {
        &self.ready_line
    }

    /// The temporary directory that `~` stands for.
    pub fn home(&self) -> &Path {
        self.directory.path()
    }

    /// Of kuring's process.
    pub fn pid(&self) -> u32 {
        match &self.process {
            Some(Process::Kuring(child)) => child.id(),
            _ => panic!("no kuring runs"),
        }
    }

    /// The log directory.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn log(&self) -> String {
        match &self.process {
            Some(Process::Kafka) => {
                std::fs::read_to_string(self.directory.path().join("server.log")).unwrap_or_default()
            }
            _ => self.log.0.lock().expect("no thread panics with the log").join("\n"),
        }
    }

    /// SIGTERM; how the process ended and how long that took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let start = Instant::now();
        match self.process.take().expect("the broker runs") {
            Process::Kuring(mut child) => {
                signal(&child, rustix::process::Signal::TERM);
                (self.wait(&mut child), start.elapsed())
            }
            Process::Kafka => (self.kafka_real(&["stop"]).status().expect("kafka-real"), start.elapsed()),
        }
    }

    /// SIGKILL: what the process had not given to the kernel is lost.
    pub fn kill(&mut self) {
        match self.process.take().expect("the broker runs") {
            Process::Kuring(mut child) => {
                child.kill().expect("the child is ours");
                child.wait().expect("the child is ours");
                *self.stands_still.get_mut() = false;
            }
            Process::Kafka => drop(self.kafka_real(&["kill"]).status().expect("kafka-real")),
        }
    }

    /// Has the process stand still, or go on.
    pub fn stand_still(&self, stands_still: bool) {
        let Some(Process::Kuring(child)) = &self.process else { panic!("no kuring runs") };
        let signals = [rustix::process::Signal::CONT, rustix::process::Signal::STOP];
        signal(child, signals[usize::from(stands_still)]);
        self.stands_still.store(stands_still, Ordering::Relaxed);
    }

    /// Nothing that is asked of it is answered.
    pub fn stands_still(&self) -> bool {
        self.stands_still.load(Ordering::Relaxed)
    }

    /// Starts a stopped broker on the data and the port that it had.
    pub fn start_again(&mut self, shards: usize) {
        assert!(self.process.is_none(), "stop it first");
        self.shards = shards;
        self.launch();
    }

    /// Starts a stopped broker that may end by itself before it is ready; tells whether it became ready.
    pub fn try_start_again(&mut self) -> bool {
        assert!(self.process.is_none(), "stop it first");
        self.launch_kuring().is_ok()
    }

    /// It was started and neither stopped nor killed by this test.
    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    pub fn is_alive(&mut self) -> bool {
        match &mut self.process {
            Some(Process::Kuring(child)) => matches!(child.try_wait(), Ok(None)),
            Some(Process::Kafka) => true,
            None => false,
        }
    }

    /// Of kuring's process.
    pub fn process_id(&self) -> u32 {
        match &self.process {
            Some(Process::Kuring(child)) => child.id(),
            _ => panic!("no process of kuring runs"),
        }
    }

    /// Memory of kuring's process that is in RAM.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process_id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Descriptors that kuring's process has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process_id())).expect("it runs").count()
    }

    /// Runs `kuring` with these arguments against this broker, fed with `input`; its standard output.
    pub fn kuring(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let (status, output, errors) = kuring(arguments, &["--bootstrap", &self.bootstrap], input);
        assert!(status.success(), "kuring {arguments:?}: {status}\n{errors}");
        output
    }

    fn launch(&mut self) {
        if Self::is_kafka() {
            self.launch_kafka();
        } else if let Err(problem) = self.launch_kuring() {
            panic!("{problem}\n{}", self.log());
        }
    }

    fn launch_kuring(&mut self) -> Result<(), String> {
        let port = self.bootstrap.rsplit_once(':').map_or("0", |(_, port)| port).to_string();
        let words: Vec<&str> =
            self.prefix.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_kuring"), "serve"]).collect();
        let mut command = Command::new(words[0]);
        command.current_dir(self.directory.path()).args(&words[1..]);
        let mut set = |name: &str, value: &str| {
            command.arg("--set").arg(format!("{name}={value}"));
        };
        set("listeners", &format!("PLAINTEXT://127.0.0.1:{port}"));
        set("log.dirs", &self.data().to_string_lossy());
        // Unless the test has one.
        set("kuring.admin.listener", "127.0.0.1:0");
        if off_owner() {
            set("kuring.shards", OFF_OWNER_SHARDS);
            set("kuring.connection.shards", "0");
        } else {
            set("kuring.shards", &self.shards.to_string());
        }
        // The first consumer has them made, and 50 take longer than most tests.
        set("offsets.topic.num.partitions", "4");
        for (name, value) in &self.settings {
            set(name, value);
        }
        let mut child = command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built for this test");
        let (ready, is_ready) = channel();
        self.log.follow(child.stdout.take().expect("piped"), Some(ready));
        self.log.follow(child.stderr.take().expect("piped"), None);
        let line = is_ready.recv_timeout(PATIENCE);
        self.process = Some(Process::Kuring(child));
        self.ready_line = match line {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Err(format!("no ready line within {PATIENCE:?}")),
            Err(RecvTimeoutError::Disconnected) => return Err("kuring ended before it was ready".to_string()),
        };
        self.bootstrap = self
            .ready_line
            .split([',', ' '])
            .find(|word| word.starts_with("127.0.0.1:"))
            .unwrap_or_else(|| panic!("no bootstrap address in {:?}", self.ready_line))
            .to_string();
        Ok(())
    }

    fn launch_kafka(&mut self) {
        let mut command = self.kafka_real(&["start"]);
        if let Some((_, port)) = self.bootstrap.rsplit_once(':') {
            command.args(["--port", port]);
        }
        let own = self.settings.iter().filter(|(name, _)| !name.starts_with("kuring."));
        command.args(own.map(|(name, value)| format!("{name}={value}")));
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("kafka-real");
        assert!(output.status.success(), "kafka-real start: {}", output.status);
        self.bootstrap = String::from_utf8_lossy(&output.stdout).trim().to_string();
        self.process = Some(Process::Kafka);
    }

    fn kafka_real(&self, arguments: &[&str]) -> Command {
        let mut command =
            Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/kafka-real"));
        command.args(arguments).arg(self.directory.path());
        command
    }

    fn wait(&self, child: &mut Child) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("the child is ours") {
                return status;
            }
            if start.elapsed() > PATIENCE {
                // The child would outlive the test otherwise.
                let _ = child.kill();
                panic!("the broker did not end within {PATIENCE:?}\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(LOG_LINES_SHOWN);
            eprintln!("--- the broker's last lines\n{}\n---", lines[from..].join("\n"));
        }
        match self.process.take() {
            Some(Process::Kuring(mut child)) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Some(Process::Kafka) => drop(self.kafka_real(&["kill"]).status()),
            None => {}
        }
    }
}

impl Log {
    /// Keeps every line of `stream`; the first that says the broker is ready also goes to `ready`.
    fn follow(&self, stream: impl Read + Send + 'static, mut ready: Option<Sender<String>>) {
        let log = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if line.starts_with("kuring ready") {
                    let waiting = ready.take();
                    let _ = waiting.map(|waiting| waiting.send(line.clone()));
                }
                log.0.lock().expect("no thread panics with the log").push(line);
            }
        });
    }
}

/// Runs `kuring` to its end: how it ended, its output, what it said on standard error.
pub fn kuring(arguments: &[&str], more: &[&str], input: &[u8]) -> (ExitStatus, Vec<u8>, String) {
    use std::io::Write as _;
    let mut child = Command::new(env!("CARGO_BIN_EXE_kuring"))
        .args(arguments)
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built for this test");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("the child is ours");
    feeder.join().expect("the feeder only writes");
    (output.status, output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("the child is ours and not yet waited for");
}
