//! The way of log lines to standard error: a bounded queue, and one thread that writes. Whoever logs never
//! waits for the reader of standard error: a shard would stop with a pipe that nobody reads. What finds the
//! queue full is dropped and counted.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::PROCESS;

/// Bytes of lines that wait; beyond it they are dropped.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// One queue: the process has [`start`]ed one, tests make their own.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Everything is written.
    emptied: Condvar,
}

#[derive(Default)]
struct State {
    /// Whole lines.
    waiting: Vec<u8>,
    /// What was taken out is not yet written.
    is_writing: bool,
    /// Lines dropped since the last that was written.
    dropped: u64,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Starts the thread. `told` makes the line that tells how many were dropped. A second call changes nothing.
///
/// # Errors
/// When no thread can be made; then lines are written where they are logged.
pub fn start(told: fn(u64) -> String) -> std::io::Result<()> {
    if QUEUE.get().is_some() {
        return Ok(());
    }
    // The thread waits until the queue is set, which is the next thing to happen.
    std::thread::Builder::new().name("log".into()).spawn(move || {
        QUEUE.wait().write_for_ever(&mut std::io::stderr(), told);
    })?;
    QUEUE.get_or_init(Queue::default);
    Ok(())
}

/// Queues a whole line, with its end. Without a thread it is written at once.
pub fn write(line: &[u8]) {
    match QUEUE.get() {
        Some(queue) => queue.push(line),
        // Nobody could be told of an error.
        None => drop(std::io::stderr().write_all(line)),
    }
}

/// Waits until everything is written, at most `patience`; false when that was not enough.
pub fn flush(patience: Duration) -> bool {
    QUEUE.get().is_none_or(|queue| queue.flush(patience))
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.waiting.len() + line.len() > QUEUE_BYTES_MAX {
            state.dropped += 1;
            PROCESS.log_lines_dropped.increment();
            return;
        }
        let was_empty = state.waiting.is_empty();
        state.waiting.extend_from_slice(line);
        drop(state);
        if was_empty {
            self.filled.notify_one();
        }
    }

    fn flush(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        while state.is_writing || !state.waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.emptied.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn write_for_ever(&self, to: &mut dyn Write, told: fn(u64) -> String) {
        // The two vectors take turns.
        let mut lines = Vec::new();
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut state.waiting, &mut lines);
            state.is_writing = true;
            let dropped = std::mem::take(&mut state.dropped);
            drop(state);
            if dropped > 0 {
                // They came when these lines were already waiting.
                lines.extend_from_slice(told(dropped).as_bytes());
            }
            // A reader that has gone away: the lines are lost, as with any program.
            let _ = to.write_all(&lines);
            lines.clear();
            let mut state = self.lock();
            state.is_writing = false;
            if state.waiting.is_empty() {
                // Room for a burst is given back.
                lines.shrink_to(4096);
                drop(state);
                self.emptied.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Takes a write only when the test lets it.
    struct Slow {
        allowed: Receiver<()>,
        written: SyncSender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.allowed.recv();
            let _ = self.written.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn whoever_logs_never_waits_for_the_reader_and_what_was_dropped_is_told() {
        let queue = Arc::new(Queue::default());
        let (allow, allowed) = sync_channel(100);
        let (written, lines) = sync_channel(100);
        let writing = queue.clone();
        std::thread::spawn(move || {
            let told = |count| format!("{count} dropped\n");
            writing.write_for_ever(&mut Slow { allowed, written }, told);
        });
        queue.push(b"first\n");
        while !queue.lock().is_writing {
            std::thread::yield_now();
        }
        let long = vec![b'x'; QUEUE_BYTES_MAX / 4];
        for _ in 0..7 {
            queue.push(&long);
        }
        assert!(!queue.flush(Duration::from_millis(1)));
        (0..10).for_each(|_| allow.send(()).unwrap());
        assert!(queue.flush(Duration::from_secs(10)));
        assert_eq!(lines.recv().unwrap(), b"first\n");
        let rest = lines.recv().unwrap();
        assert_eq!(rest.len(), QUEUE_BYTES_MAX + b"3 dropped\n".len());
        assert!(rest.ends_with(b"3 dropped\n"));
    }
}
