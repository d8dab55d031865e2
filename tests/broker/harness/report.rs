//! What a broker's process is doing, for a test that waits in vain: it may hang, or the machine may be too busy.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Broker;

/// Lines of the stacks that are shown.
const STACK_LINES_MAX: usize = 600;

/// Per thread its state, what it waits for in the kernel, for how long it ran and how long it waited for a core; the TCP
/// queues of the broker's port; how busy the machine is; the stacks, where there is gdb.
pub fn process_report(broker: &Broker) -> String {
    let pid = broker.pid();
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
    let mut lines = vec!["--- threads: state, wait channel, ns run, ns waited for a core, slices".to_owned()];
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let of = |name: &str| read(&task.path().join(name)).trim().to_owned();
        let status = of("status");
        let state =
            status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("?").trim().to_owned();
        lines.push(format!("{} {state}, {}, {}", of("comm"), of("wchan"), of("schedstat")));
        // Only root may read it.
        lines.extend(of("stack").lines().map(|line| format!("    {line}")));
    }
    lines.push("--- the machine".to_owned());
    for name in ["loadavg", "pressure/cpu", "pressure/io", "pressure/memory"] {
        lines.push(format!("{name}: {}", read(&Path::new("/proc").join(name)).trim()));
    }
    let port = broker.bootstrap().rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    lines.push("--- TCP of its port: local, remote, state, queues (sending:receiving), timer".to_owned());
    let wanted = format!(":{:04X}", port.unwrap_or(0));
    let sockets = read(Path::new("/proc/net/tcp"));
    lines.extend(sockets.lines().filter(|line| line.contains(&wanted)).map(str::to_owned));
    lines.push("--- stacks".to_owned());
    let gdb = Command::new("gdb")
        .args([
            "-p",
            &pid.to_string(),
            "-batch",
            "-ex",
            "set pagination off",
            "-ex",
            "thread apply all bt 40",
        ])
        .output();
    match gdb {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            lines.extend(text.lines().take(STACK_LINES_MAX).map(str::to_owned));
        }
        Err(error) => lines.push(format!("no gdb: {error}")),
    }
    lines.join("\n")
}
