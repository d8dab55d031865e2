//! Whole clusters in virtual time: the production code's partitions, followers and controller on nodes whose disks
//! forget, over a network that loses, delays and cuts, with producers that wait for all and consumers. Nothing that was
//! acknowledged may be lost, doubled or come out of order, what was read stays, and in the end all is in order again.

mod asking;
mod broker;
mod checker;
mod clients;
mod faults;
mod fetching;
mod messages;
mod named;
mod network;
mod order;
mod planted;
mod quorum;
mod replica;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};

use self::faults::{plan, simulate};
use self::planted::Planted;
use crate::run_seeds;

/// Within so many seeds a planted bug is found.
const SEEDS_PER_BUG: u64 = 200;

#[test]
fn clusters_lose_nothing_that_was_acknowledged() {
    let (acknowledged, elections) = (AtomicUsize::new(0), AtomicUsize::new(0));
    run_seeds(40, |seed| {
        let world = simulate(plan(seed, None))?;
        acknowledged.fetch_add(world.checker.records, Ordering::Relaxed);
        elections.fetch_add(world.checker.elections, Ordering::Relaxed);
        Ok(())
    });
    println!("{acknowledged:?} records acknowledged, {elections:?} elections");
    let stood_still = acknowledged.into_inner() < 1_000 || elections.into_inner() < 10;
    assert!(!stood_still || std::env::var_os("KURING_SEED").is_some(), "the clusters stood still");
}

/// The first seed that finds it.
fn found(planted: Planted) -> Option<(u64, String)> {
    (0..SEEDS_PER_BUG).find_map(|seed| {
        let run = || simulate(plan(seed, Some(planted))).map(|_| ());
        match std::panic::catch_unwind(run) {
            Ok(outcome) => outcome.err().map(|failure| (seed, failure)),
            Err(_) => Some((seed, "it panicked".to_owned())),
        }
    })
}

macro_rules! planted {
    ($($name:ident: $planted:ident,)+) => {
        $(
            #[test]
            fn $name() {
                let found = found(Planted::$planted);
                println!("{found:?}");
                assert!(found.is_some(), "not found within {SEEDS_PER_BUG} seeds");
            }
        )+
    };
}

planted! {
    an_early_acknowledgement_is_found: AcknowledgedEarly,
    a_skipped_truncation_is_found: TruncationSkipped,
    a_stale_epoch_that_is_accepted_is_found: StaleEpochAccepted,
    a_producer_id_that_is_used_again_is_found: ProducerIdReused,
    a_leader_from_outside_the_isr_is_found: ElectedOutsideIsr,
    an_isr_that_shrinks_without_the_controller_is_found: ShrunkWithoutController,
    a_high_watermark_by_the_leaders_own_end_is_found: HighWatermarkByOwnEnd,
    a_cut_that_is_not_looked_at_again_is_found: CutNotRechecked,
    an_unclean_restart_that_stays_in_sync_is_found: UncleanRestartKept,
    a_laggard_in_sync_is_found: LaggardInSync,
}
