//! What a shard does all the time: timers, and messages to other shards. `cargo bench --bench shard`.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use kuring::base::clock::Monotonic;
use kuring::base::random::Random;
use kuring::io::runtime::{ShardBuilder, mailbox};
use kuring::timer::Wheel;

/// Timers that are in the wheel while others come and go.
const TIMERS: u64 = 10_000;
/// Deadlines lie within a minute, as those of fetches and sessions.
const SPAN_MS: u64 = 60_000;

fn wheel(criterion: &mut Criterion) {
    let mut random = Random::seeded(1);
    let mut now_ms = 0;
    let mut wheel = Wheel::new(Monotonic::ZERO);
    for _ in 0..TIMERS {
        wheel.insert(Monotonic::from_millis(1 + random.below(SPAN_MS)), 0_u64);
    }
    criterion.bench_function("wheel insert and cancel", |bencher| {
        bencher.iter(|| {
            let key = wheel.insert(Monotonic::from_millis(now_ms + 1 + random.below(SPAN_MS)), 1);
            wheel.cancel(key)
        });
    });
    let mut expired = Vec::new();
    criterion.bench_function("wheel advance by 1 ms, what expired inserted again", |bencher| {
        bencher.iter(|| {
            now_ms += 1;
            expired.clear();
            wheel.advance(Monotonic::from_millis(now_ms), &mut expired);
            for value in expired.drain(..) {
                wheel.insert(Monotonic::from_millis(now_ms + 1 + random.below(SPAN_MS)), value);
            }
        });
    });
}

/// A message to another shard and back is two hops; the figure is one.
fn mesh(criterion: &mut Criterion) {
    let (orders, mut ordered) = mailbox::<u64>();
    let (to_far, mut far) = mailbox::<u64>();
    let (to_near, mut near) = mailbox::<u64>();
    let (results, result) = std::sync::mpsc::channel();
    let near_shard = ShardBuilder::new("near").spawn(move || async move {
        let (mut counts, mut got) = (Vec::new(), Vec::new());
        while ordered.drain_into(&mut counts).await > 0 {
            for count in counts.drain(..) {
                let start = Instant::now();
                for number in 0..count {
                    to_far.push(number).expect("the other shard listens");
                    near.drain_into(&mut got).await;
                    got.clear();
                }
                results.send(start.elapsed()).expect("the benchmark waits");
            }
        }
    });
    let far_shard = ShardBuilder::new("far").spawn(move || async move {
        let mut got = Vec::new();
        while far.drain_into(&mut got).await > 0 {
            got.drain(..).for_each(|number| drop(to_near.push(number)));
        }
    });
    criterion.bench_function("mesh hop, both shards asleep before it", |bencher| {
        bencher.iter_custom(|iterations| {
            orders.push(iterations.div_ceil(2)).expect("the shard listens");
            result.recv_timeout(Duration::from_secs(600)).expect("the shards answer")
        });
    });
    drop(orders);
    near_shard.expect("the shard starts").join();
    far_shard.expect("the shard starts").join();
}

criterion_group!(shard, wheel, mesh);
criterion_main!(shard);
