//! The broker that is measured.

use std::io::{BufRead as _, BufReader, Error, Result};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreateTopicsRequest, FindCoordinatorRequest, TopicName};

use crate::Options;
use crate::wire::{Connection, text};

pub const TOPIC: &str = "t";

/// A broker of two shards with a topic, removed with its data when dropped.
pub struct Broker {
    process: Child,
    pub address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Broker {
    pub fn start(options: &Options, partitions: i32, settings: &[(&str, &str)]) -> Result<Self> {
        let kuring = &options.kuring;
        let directory = tempfile::tempdir()?;
        let data = directory.path().join("data");
        let mut command = Command::new(kuring);
        command.arg("serve").args(["--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", "kuring.shards=2"]);
        // Thousands connect at once: beyond the backlog each would try again after a second.
        command.args(["--set", "socket.listen.backlog.size=4000"]);
        command.arg("--set").arg(format!("log.dirs={}", data.display()));
        for (name, value) in settings {
            command.arg("--set").arg(format!("{name}={value}"));
        }
        for setting in &options.settings {
            command.arg("--set").arg(setting);
        }
        let log = std::fs::File::create(directory.path().join("log"))?;
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().map_err(|error| {
                Error::other(format!("{}: {error}; build it: cargo build --release", kuring.display()))
            })?;
        let output = process.stdout.take().ok_or_else(|| Error::other("no output"))?;
        let mut ready = String::new();
        BufReader::new(output).read_line(&mut ready)?;
        let address = ready.split("bootstrap ").nth(1).and_then(|rest| rest.split([',', ' ', '\n']).next());
        let address = address.and_then(|address| address.parse().ok());
        let Some(address) = address else {
            let log = std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
            return Err(Error::other(format!("the broker is not ready: {ready}{log}")));
        };
        let broker = Self { process, address, _directory: directory };
        broker.prepare(partitions)?;
        Ok(broker)
    }

    fn prepare(&self, partitions: i32) -> Result<()> {
        let connection = Connection::open(self.address)?;
        let topic = CreatableTopic::default()
            .with_name(TopicName(text(TOPIC)))
            .with_num_partitions(partitions)
            .with_replication_factor(1);
        let created = connection
            .call(7, &CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000))?;
        if created.topics[0].error_code != 0 {
            return Err(Error::other(format!("no topic: {:?}", created.topics[0].error_message)));
        }
        let find = FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g")]);
        for _ in 0..600 {
            if connection.call(4, &find)?.coordinators[0].error_code == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Error::other("no coordinator"))
    }

    /// What all its threads have run so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            // A thread may end meanwhile.
            let Ok(line) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
            nanos += line.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Nothing of it is kept, so it need not end in order.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
