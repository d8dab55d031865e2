//! No wake of a shard is lost, and no task waits long for its turn. Loads that would show it run side by side on shards
//! that compute as well: deadlines, a mailbox ping-pong between shards, wakes from a plain thread. The wakes stop for
//! 1.5 s of every 2 s: a wake that comes ends a sleep that another one should have ended.
//!
//! `KURING_WAKES_TEST_SECONDS` makes it longer than 15 s.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kuring::io::runtime::{self, Notify, Queue, ShardBuilder, ShardThread, mailbox};

/// A queue's turn and the piece that the task computes beyond it, several times over.
const TURNS: Duration = Duration::from_millis(16);
/// The machine may be busy with other tests: what a plain thread was late by is allowed twice, and this. Far
/// from a wake that was lost: that takes 1.5 s, or for ever.
const SLACK: Duration = Duration::from_millis(400);
/// For the shards' end.
const END_MAX: Duration = Duration::from_secs(10);

/// The longest time between two steps, and how many there were.
#[derive(Default)]
struct Gaps {
    longest_ns: AtomicU64,
    steps: AtomicU64,
}

impl Gaps {
    fn step(&self, last: &mut Instant) {
        let now = Instant::now();
        self.longest_ns.fetch_max((now - *last).as_nanos() as u64, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Relaxed);
        *last = now;
    }

    /// For what is not to be done all the time: the time since it was asked for.
    fn answer(&self, asked: Instant) {
        self.step(&mut asked.clone());
    }

    fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed))
    }
}

struct Load {
    name: &'static str,
    gaps: Arc<Gaps>,
}

#[test]
fn no_wake_is_lost_and_no_task_waits_long() {
    let seconds = std::env::var("KURING_WAKES_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
    let run_for = Duration::from_secs(seconds.unwrap_or(15));
    let stop = Arc::new(AtomicBool::new(false));
    let loads = ["deadlines 0", "deadlines 1", "ping", "pong", "wakes 0", "wakes 1"]
        .map(|name| Load { name, gaps: Arc::new(Gaps::default()) });
    let gaps = |index: usize| loads[index].gaps.clone();

    let noise = Arc::new(Gaps::default());
    let sleeper = plain_sleeper(noise.clone(), stop.clone());
    let (to_zero, from_one) = mailbox();
    let (to_one, from_zero) = mailbox();
    let (wakes_0, wakes_1) = (Wakes::default(), Wakes::default());
    let waker = waker_thread([wakes_0.clone(), wakes_1.clone()], stop.clone());
    let shards: [ShardThread<()>; 2] = [
        shard("gaps-0", gaps(0), stop.clone(), (gaps(2), to_one, from_one), (gaps(4), wakes_0)),
        shard("gaps-1", gaps(1), stop.clone(), (gaps(3), to_zero, from_zero), (gaps(5), wakes_1)),
    ];

    std::thread::sleep(run_for);
    let stalls = runtime::stalls();
    stop.store(true, Ordering::Relaxed);
    let ended = joined_within(shards, END_MAX);
    waker.join().expect("the waking thread");
    sleeper.join().expect("the sleeping thread");

    let allowed = TURNS + 2 * noise.longest() + SLACK;
    println!("a plain thread that sleeps 1 ms: {:?} late at most; allowed {allowed:?}", noise.longest());
    println!("{stalls:?}");
    for Load { name, gaps } in &loads {
        let steps = gaps.steps.load(Ordering::Relaxed);
        println!("{name}: {steps} steps, longest gap {:?}", gaps.longest());
    }
    assert!(ended, "a shard does not end");
    for Load { name, gaps } in &loads {
        assert!(gaps.longest() <= allowed, "{name} stood still for {:?}", gaps.longest());
        assert!(gaps.steps.load(Ordering::Relaxed) > 100, "{name} hardly ran");
    }
}

fn joined_within(shards: [ShardThread<()>; 2], limit: Duration) -> bool {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        shards.into_iter().for_each(ShardThread::join);
        let _ = ended.send(());
    });
    end.recv_timeout(limit).is_ok()
}

type PingPong = (Arc<Gaps>, runtime::Sender<u64>, runtime::Mailbox<u64>);

fn shard(
    name: &str,
    deadline_gaps: Arc<Gaps>,
    stop: Arc<AtomicBool>,
    (ball_gaps, there, mut here): PingPong,
    (wake_gaps, wakes): (Arc<Gaps>, Wakes),
) -> ShardThread<()> {
    let shard = ShardBuilder::new(name).preempt(Duration::from_millis(1));
    let started = shard.spawn(move || async move {
        let running = {
            let stop = stop.clone();
            Rc::new(move || !stop.load(Ordering::Relaxed))
        };
        let go = running.clone();
        let sleeping = runtime::spawn(Queue::Back, "deadlines", async move {
            let mut last = Instant::now();
            while go() {
                runtime::sleep(Duration::from_millis(1)).await;
                deadline_gaps.step(&mut last);
            }
        });
        let go = running.clone();
        let playing = runtime::spawn(Queue::Serve, "ping-pong", async move {
            there.push(0).expect("the other shard is there");
            let (mut last, mut batch) = (Instant::now(), Vec::new());
            while go() && here.drain_into(&mut batch).await > 0 {
                for ball in batch.drain(..) {
                    // The other may have ended its game.
                    let _ = there.push(ball + 1);
                }
                ball_gaps.step(&mut last);
            }
        });
        let go = running.clone();
        let woken = runtime::spawn(Queue::Control, "woken", async move {
            while go() {
                wakes.notify.notified().await;
                if let Some(asked) = wakes.take_asked() {
                    wake_gaps.answer(asked);
                }
            }
        });
        // Computes in pieces of up to 1.5 ms: the queue's turn is over again and again.
        let computing = runtime::spawn(Queue::Serve, "compute", async move {
            let mut micros = 0;
            while running() {
                let started = Instant::now();
                micros = (micros + 70) % 1500;
                let length = Duration::from_micros(micros);
                while started.elapsed() < length {
                    std::hint::spin_loop();
                }
                runtime::yield_if_needed().await;
                if micros < 700 {
                    runtime::sleep(Duration::from_micros(300)).await;
                }
            }
        });
        for task in [sleeping, playing, woken, computing] {
            task.await;
        }
    });
    started.expect("the shard starts")
}

/// A wake and when it was asked for.
#[derive(Clone, Default)]
struct Wakes {
    notify: Notify,
    asked: Arc<Mutex<Option<Instant>>>,
}

impl Wakes {
    fn wake(&self) {
        self.asked.lock().expect("no panic").get_or_insert_with(Instant::now);
        self.notify.notify();
    }

    fn take_asked(&self) -> Option<Instant> {
        self.asked.lock().expect("no panic").take()
    }
}

/// Wakes both shards about every millisecond, in bursts.
fn waker_thread(wakes: [Wakes; 2], stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let started = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            if started.elapsed().as_millis() % 2000 < 500 {
                wakes.iter().for_each(Wakes::wake);
            }
        }
        wakes.iter().for_each(Wakes::wake);
    })
}

/// Shows how late this machine lets any thread be.
fn plain_sleeper(noise: Arc<Gaps>, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut last = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            noise.step(&mut last);
        }
    })
}
