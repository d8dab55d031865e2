//! Tests of the shard runtime, its wakes across threads and the watchdog.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::*;

#[test]
fn task_gives_its_result_and_is_not_polled_inside_spawn() {
    let sum = run_shard("spawn", || async {
        let polled = Rc::new(RefCell::new(false));
        let guard = polled.borrow_mut();
        let task = {
            let polled = polled.clone();
            spawn(Queue::Serve, "sum", async move {
                *polled.borrow_mut() = true;
                1 + 2
            })
        };
        drop(guard);
        let sum = task.await;
        assert!(*polled.borrow());
        sum
    });
    assert_eq!(sum, 3);
}

#[test]
fn dropped_task_is_cancelled_and_detached_one_goes_on() {
    run_shard("cancel", || async {
        let count = Rc::new(AtomicU32::new(0));
        let run = |count: Rc<AtomicU32>, by: u32| async move {
            sleep(Duration::from_millis(5)).await;
            count.fetch_add(by, Ordering::Relaxed);
        };
        drop(spawn(Queue::Back, "dropped", run(count.clone(), 1)));
        spawn(Queue::Back, "detached", run(count.clone(), 10)).detach();
        let cancelled = spawn(Queue::Back, "cancelled", run(count.clone(), 100));
        assert_eq!(cancelled.cancel().await, None);
        sleep(Duration::from_millis(50)).await;
        assert_eq!(count.load(Ordering::Relaxed), 10);
        assert_eq!(Rc::strong_count(&count), 1, "futures that ended are dropped");
    });
}

#[test]
#[should_panic(expected = "seen by the caller")]
fn panic_in_the_root_of_a_test_shard_is_the_callers() {
    run_shard("panic", || async { panic!("seen by the caller") })
}

/// Set in the process that is to end.
const PANICS: &str = "KURING_TEST_TASK_PANICS";

#[test]
fn a_panic_in_a_task_ends_the_process_and_names_the_task() {
    if std::env::var_os(PANICS).is_some() {
        run_shard("doomed", || async {
            spawn(Queue::Serve, "careless task", async { panic!("its words") }).detach();
            sleep(Duration::from_secs(20)).await;
        });
        return;
    }
    let name = "io::runtime::tests::a_panic_in_a_task_ends_the_process_and_names_the_task";
    let output = std::process::Command::new(std::env::current_exe().expect("a test has a path"))
        .args(["--exact", name, "--nocapture"])
        .env(PANICS, "1")
        .output()
        .expect("the test binary runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(70), "{errors}");
    assert!(errors.contains("task careless task panicked: its words"), "{errors}");
}

#[test]
fn sleep_until_a_past_deadline_returns_at_once() {
    run_shard("past", || async {
        let started = Instant::now();
        sleep_until(clock::monotonic()).await;
        assert!(started.elapsed() < Duration::from_secs(10));
        let deadline = clock::monotonic().plus(Duration::from_millis(20));
        sleep_until(deadline).await;
        assert!(clock::monotonic() >= deadline);
    });
}

#[test]
fn notification_before_the_wait_is_kept() {
    let notify = Notify::new();
    notify.notify();
    notify.notify();
    let (foreign, there) = (notify.clone(), Notify::new());
    let thread = {
        let there = there.clone();
        std::thread::spawn(move || {
            run_shard("notifier", move || async move {
                there.notified().await;
                foreign.notify();
            })
        })
    };
    run_shard("notified", move || async move {
        notify.notified().await;
        there.notify();
        notify.notified().await;
    });
    thread.join().unwrap();
}

#[test]
fn mailbox_keeps_each_senders_order_and_ends_with_the_last_sender() {
    let (sender, mut mailbox) = mailbox::<(u32, u32)>();
    let threads: Vec<_> = (0..4)
        .map(|id| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for number in 0..10_000 {
                    sender.push((id, number)).unwrap();
                }
            })
        })
        .collect();
    drop(sender);
    run_shard("mailbox", move || async move {
        let mut next = [0; 4];
        let mut batch = Vec::new();
        while mailbox.drain_into(&mut batch).await > 0 {
            for (id, number) in batch.drain(..) {
                assert_eq!(next[id as usize], number);
                next[id as usize] += 1;
            }
        }
        assert_eq!(next, [10_000; 4]);
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn push_into_a_dropped_mailbox_gives_the_item_back() {
    let (sender, mailbox) = mailbox::<u8>();
    sender.push(1).unwrap();
    drop(mailbox);
    assert_eq!(sender.push(2).unwrap_err().0, 2);
}

#[test]
fn shards_more_than_cores_all_run() {
    let shards: Vec<_> = (0..8)
        .map(|index| {
            ShardBuilder::new(format!("many-{index}")).spawn(move || async move {
                sleep(Duration::from_millis(5)).await;
                index
            })
        })
        .collect();
    let sum: usize = shards.into_iter().map(|shard| shard.unwrap().join()).sum();
    assert_eq!(sum, 28);
}

#[test]
fn pinned_shard_runs_on_its_core() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
    for spin in [Duration::ZERO, Duration::from_micros(100)] {
        let shard = ShardBuilder::new("pinned").cpu(Some(cpu)).spin_before_park(spin);
        let seen = shard.spawn(|| async { rustix::thread::sched_getcpu() }).unwrap().join();
        assert_eq!(seen, cpu);
    }
    let missing = ShardBuilder::new("nowhere").cpu(Some(100_000));
    assert!(missing.spawn(|| async {}).is_err());
}

#[test]
fn watchdog_names_a_shard_that_does_not_answer() {
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let shard = ShardBuilder::new("stuck").spawn(move || async move {
        spawn(Queue::Serve, "long computation", async move { may_go_on.recv().unwrap() }).await;
        sleep(Duration::from_millis(20)).await;
        stalls().into_iter().find(|report| report.shard == "stuck").unwrap()
    });
    let begun = Instant::now();
    let silent = loop {
        let found = stalls().into_iter().find(|report| report.shard == "stuck" && report.stalls > 0);
        if let Some(report) = found {
            break report;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody has noticed");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(silent.silent >= Duration::from_millis(500), "{silent:?}");
    assert_eq!(silent.last_activity, "long computation");
    go_on.send(()).unwrap();
    let report = shard.unwrap().join();
    assert!(report.longest >= silent.silent, "{report:?}");
    assert_eq!(report.stalls, 1);
    assert!(stalls().iter().all(|report| report.shard != "stuck"), "a shard that ended is not watched");
}

/// The far end of a socket, a task that waits for what comes from there, and whether something has.
async fn awaited_socket() -> (UnixStream, Rc<Cell<bool>>, Task<()>) {
    let (here, there) = UnixStream::pair().unwrap();
    let has_come = Rc::new(Cell::new(false));
    let noted = has_come.clone();
    let waiting = spawn(Queue::Serve, "waits", async move {
        let readiness = task::watch(here.as_fd(), ring::Interest::Readable);
        std::future::poll_fn(|cx| readiness.poll_ready(cx)).await.unwrap();
        noted.set(true);
    });
    // It waits by then, and the ring has been told.
    sleep(Duration::from_millis(20)).await;
    (there, has_come, waiting)
}

#[test]
fn news_of_a_socket_comes_while_another_task_can_always_run() {
    run_shard("busy", || async {
        let (mut there, has_come, waiting) = awaited_socket().await;
        there.write_all(&[1]).unwrap();
        let begun = Instant::now();
        while !has_come.get() {
            assert!(begun.elapsed() < Duration::from_secs(5), "nobody asks the ring");
            yield_now().await;
        }
        waiting.await;
    });
}

#[test]
fn who_gives_way_lets_those_go_first_whose_news_has_come_meanwhile() {
    run_shard("polite", || async {
        let (mut there, has_come, waiting) = awaited_socket().await;
        let sender = spawn(Queue::Serve, "sends", async move {
            there.write_all(&[1]).unwrap();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(200) {}
            give_way().await;
            has_come.get()
        });
        assert!(sender.await, "its turn was not over, but it had taken long");
        waiting.await;
    });
}

/// IO, deadlines and wakes from outside are looked after between the polls of a queue that always has more to run.
#[test]
fn a_queue_that_is_never_empty_keeps_no_other_from_its_turn() {
    let (foreign, back) = (Notify::new(), Notify::new());
    let (wanted, answered) = (foreign.clone(), back.clone());
    let shard = ShardBuilder::new("full").spawn(move || async move {
        let is_over = Rc::new(Cell::new(false));
        let hogs: Vec<_> = (0..3)
            .map(|_| {
                let is_over = is_over.clone();
                spawn(Queue::Serve, "hog", async move {
                    while !is_over.get() {
                        // Back into its own queue, without a word about the others.
                        let mut is_woken = false;
                        std::future::poll_fn(|cx| {
                            cx.waker().wake_by_ref();
                            match std::mem::replace(&mut is_woken, true) {
                                true => std::task::Poll::Ready(()),
                                false => std::task::Poll::Pending,
                            }
                        })
                        .await;
                    }
                })
            })
            .collect();
        let rounds = spawn(Queue::Control, "rounds", async move {
            for _ in 0..20 {
                wanted.notified().await;
                answered.notify();
            }
        });
        let deadlines = spawn(Queue::Back, "deadlines", async {
            for _ in 0..20 {
                sleep(Duration::from_millis(1)).await;
            }
        });
        rounds.await;
        deadlines.await;
        is_over.set(true);
        for hog in hogs {
            hog.await;
        }
    });
    run_shard("outside", move || async move {
        for _ in 0..20 {
            foreign.notify();
            back.notified().await;
        }
    });
    shard.unwrap().join();
}
