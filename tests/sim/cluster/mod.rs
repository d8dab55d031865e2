//! Whole clusters in virtual time: the production code's partitions, followers and controller on nodes whose disks
//! forget, over a network that loses, delays and cuts, with producers that wait for all and consumers. Nothing that was
//! acknowledged may be lost, doubled or come out of order, what was read stays, and in the end all is in order again.

mod asking;
mod broker;
mod checker;
mod clients;
mod coordinating;
mod entries;
mod faults;
mod fetching;
mod ledger;
mod messages;
mod named;
mod network;
mod order;
mod planted;
mod quorum;
mod replica;
mod transactors;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};

use self::checker::Checker;
use self::faults::{plan, simulate};
use self::planted::Planted;
use crate::run_seeds;

/// Within so many seeds a planted bug is found.
const SEEDS_PER_BUG: u64 = 200;

/// What the worlds of all seeds came to, by name.
const COUNTED: [(&str, usize); 7] = [
    ("records acknowledged", 1_000),
    ("elections", 10),
    ("transactions committed", 50),
    ("transactions aborted", 20),
    ("fetches that followers served", 100),
    ("logs begun anew", 3),
    ("logs cleaned", 20),
];

#[test]
fn clusters_lose_nothing_that_was_acknowledged() {
    let counts: [AtomicUsize; COUNTED.len()] = Default::default();
    run_seeds(40, |seed| {
        let Checker { records, elections, ledger, followers_served, begun_anew, cleaned, .. } =
            simulate(plan(seed, None))?.checker;
        let transactions = [ledger.committed, ledger.aborted];
        let of_seed =
            [records, elections, transactions[0], transactions[1], followers_served, begun_anew, cleaned];
        for (count, of_seed) in counts.iter().zip(of_seed) {
            count.fetch_add(of_seed, Ordering::Relaxed);
        }
        Ok(())
    });
    let is_one = std::env::var_os("KURING_SEED").is_some();
    for ((name, least), count) in COUNTED.into_iter().zip(counts) {
        let count = count.into_inner();
        println!("{count} {name}");
        assert!(count >= least || is_one, "there were {count} {name}");
    }
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
    a_state_that_is_not_awaited_is_found: StateNotAwaited,
    a_state_that_is_not_read_again_is_found: StateNotReloaded,
    a_forgotten_marker_is_found: MarkerForgotten,
    a_transaction_that_is_not_verified_is_found: TransactionNotVerified,
    a_last_stable_offset_that_is_ignored_is_found: LastStableIgnored,
    aborted_transactions_that_followers_do_not_tell_are_found: AbortedNotTold,
    a_follower_that_serves_up_to_its_end_is_found: FollowerServesItsEnd,
    an_end_that_is_told_too_early_is_found: EndToldTooEarly,
    a_log_start_that_is_not_told_is_found: LogStartNotTold,
    a_log_that_is_not_begun_anew_is_found: NotBegunAnew,
    a_batch_that_is_asked_for_again_before_the_start_is_found: AskedAgainBefore,
    a_deletion_beyond_the_high_watermark_is_found: DeletedBeyondHighWatermark,
}
