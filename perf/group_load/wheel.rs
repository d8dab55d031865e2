//! The timing wheel with a million timers in it.

use std::hint::black_box;
use std::time::Instant;

use kuring::base::clock::Monotonic;
use kuring::base::random::Random;
use kuring::timer::{TimerKey, Wheel};

use crate::{Options, Outcome};

const TIMERS: usize = 1_000_000;
const SPAN_MS: u64 = 600_000;

pub fn run(_: &Options) -> Outcome {
    let mut random = Random::seeded(1);
    let mut wheel = Wheel::new(Monotonic::ZERO);
    let mut keys: Vec<TimerKey> =
        (0..TIMERS as u64).map(|value| wheel.insert(deadline(&mut random), value)).collect();
    // Both with all the timers in it: each place in turn gets another timer, then timers go in another order.
    let deadlines: Vec<Monotonic> = (0..TIMERS).map(|_| deadline(&mut random)).collect();
    let start = Instant::now();
    let added: Vec<TimerKey> = deadlines.iter().map(|deadline| wheel.insert(*deadline, 0)).collect();
    let insert = start.elapsed();
    for at in (1..keys.len()).rev() {
        keys.swap(at, random.below(at as u64 + 1) as usize);
    }
    let start = Instant::now();
    for key in &keys {
        black_box(wheel.cancel(*key));
    }
    let cancel = start.elapsed();
    black_box(added);
    assert_eq!(wheel.len(), TIMERS, "the others are still there");
    // As sessions go: one timer goes and comes again.
    let start = Instant::now();
    for deadline in &deadlines {
        let key = wheel.insert(*deadline, 1);
        black_box(wheel.cancel(key));
    }
    let both = start.elapsed();
    println!(
        "timers: with {TIMERS} and more in the wheel an insert takes {:.0} ns, a cancel in random order {:.0} ns; an \
         insert that is cancelled at once {:.0} ns for both",
        insert.as_nanos() as f64 / TIMERS as f64,
        cancel.as_nanos() as f64 / TIMERS as f64,
        both.as_nanos() as f64 / TIMERS as f64,
    );
    Ok(())
}

fn deadline(random: &mut Random) -> Monotonic {
    Monotonic::from_millis(1 + random.below(SPAN_MS))
}
