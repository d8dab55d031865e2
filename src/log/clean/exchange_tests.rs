//! What is under way in a log while compaction exchanges its segments: reads, look-ups, indexes that are built anew, the
//! scrub.

use std::sync::Arc;

use super::super::*;
use super::tests::{Bench, SETTINGS, config};
use super::*;
use crate::base::clock::Timestamp;
use crate::io::FileHandle;
use crate::io::mem::MemFiles;
use crate::wire::record::{BatchBuilder, Batches, Compression};

/// What the first group of a cleaning came to: it is to be exchanged.
fn first_group(bench: &mut Bench) -> Box<Cleaned<MemFiles>> {
    let (now, end) = (bench.now(), bench.log().log_end());
    let mut clean = bench.log().start_clean(end, SETTINGS, now).unwrap();
    loop {
        clean = match clean.run() {
            CleanStep::More(clean) => clean,
            CleanStep::Group(_, cleaned) => return cleaned,
            CleanStep::Done { .. } | CleanStep::Failed(_) => panic!("a group comes first"),
        };
    }
}

/// Several segments of which most batches go.
fn dirty() -> Bench {
    let mut bench = Bench::new(config());
    for number in 0..60 {
        let own = number.to_string();
        bench.put(&[(if number % 4 == 0 { &own } else { "a" }, Some("value"))]);
    }
    bench.roll();
    bench
}

#[test]
fn readers_with_open_ranges_go_on_and_late_plans_are_made_again() {
    let mut bench = Bench::new(config());
    for number in 0..20 {
        bench.put(&[("a", Some(&format!("{number}"))), (&format!("{number}"), Some("v"))]);
    }
    bench.roll();
    let end = bench.log().log_end();
    let request = ReadRequest {
        offset: Offset(0),
        bytes_max: 1 << 20,
        upper_bound: end,
        whole_first_batch: true,
        with_aborted: false,
    };
    let Read::Plan(ReadPlan { range: Some(range), .. }) = bench.log().read(request).unwrap() else {
        panic!("the segment is open");
    };
    let mut before = vec![0; range.length as usize];
    range.file.read_at(&mut before, range.position).unwrap();
    bench.log().release_files();
    let Read::NeedsDisk(late) = bench.log().read(request).unwrap() else { panic!("it was closed") };
    let time = match bench.log().offset_for(TimestampTarget::FirstAtOrAfter(Timestamp(1))) {
        OffsetLookup::NeedsDisk(job) => job.layout(),
        OffsetLookup::Ready(_) => panic!("a record has the time"),
    };
    bench.clean().unwrap();
    let mut after = vec![0; range.length as usize];
    range.file.read_at(&mut after, range.position).unwrap();
    assert_eq!(before, after);
    assert!(!bench.log().is_current(time));
    let mut read = bench.log().finish_read(late.run()).unwrap();
    let plan = loop {
        match read {
            Read::Plan(plan) => break plan,
            Read::NeedsDisk(job) => read = bench.log().finish_read(job.run()).unwrap(),
        }
    };
    let range = plan.range.unwrap();
    let mut bytes = vec![0; range.length as usize];
    range.file.read_at(&mut bytes, range.position).unwrap();
    assert!(Batches::new(&bytes).all(|batch| batch.is_ok_and(|batch| batch.check_crc().is_ok())));
}

#[test]
fn truncation_retention_and_a_new_policy_make_the_output_void() {
    type Change = fn(&mut Bench);
    let changes: [Change; 3] = [
        |bench| {
            let now = bench.now();
            bench.log().truncate_to(Offset(3), now).unwrap();
        },
        |bench| {
            let (now, end) = (bench.now(), bench.log().log_end());
            let start = bench.log().segments[1].base;
            bench.log().advance_log_start(start).unwrap();
            bench.log().enforce_retention(end, now);
        },
        |bench| bench.log().set_config(Arc::new(LogConfig::default())),
    ];
    for change in changes {
        let mut bench = Bench::new(config());
        for number in 0..30 {
            bench.put(&[("a", Some(&format!("{number}")))]);
        }
        bench.roll();
        let cleaned = first_group(&mut bench);
        change(&mut bench);
        let before = bench.records();
        let Err(cleaned) = bench.log().exchange(cleaned) else { panic!("the log has changed") };
        cleaned.discard().unwrap();
        bench.settle().unwrap();
        assert_eq!(bench.records(), before);
        assert!(!bench.names().iter().any(|name| name.ends_with(".cleaned")));
    }
}

#[test]
fn indexes_that_were_built_of_a_file_before_its_exchange_are_void() {
    let mut bench = dirty();
    let cleaned = first_group(&mut bench);
    bench.log().index_damaged(Offset(0));
    let now = bench.now();
    let outcome = bench.log().next_job(now).unwrap().run();
    assert!(bench.log().exchange(cleaned).is_ok());
    bench.log().finish(outcome, now).unwrap();
    bench.settle().unwrap();
    bench.check_readable();
    assert_eq!(bench.log().counts().indexes_damaged, 1, "no read was led astray by them");
}

#[test]
fn the_scrub_waits_while_exchanged_files_have_no_names_and_what_it_read_before_is_void() {
    let mut bench = dirty();
    let cleaned = first_group(&mut bench);
    let first = bench.log().scrub_job(None, 400).unwrap().run().unwrap();
    let position = bench.log().finish_scrub(first).unwrap().next;
    let before = bench.log().scrub_job(Some(position), 400).unwrap();
    assert!(bench.log().exchange(cleaned).is_ok());
    let outcome = before.run().unwrap();
    assert_eq!(bench.log().finish_scrub(outcome), None);
    assert!(bench.log().scrub_job(None, 400).is_none());
    bench.settle().unwrap();
    assert!(bench.log().scrub_job(Some(position), 400).is_none(), "a position in a file that is gone");
    let (mut position, mut bytes) = (None, 0);
    while let Some(job) = bench.log().scrub_job(position, 400) {
        let outcome = job.run().unwrap();
        let scrubbed = bench.log().finish_scrub(outcome).unwrap();
        assert_eq!(scrubbed.findings, []);
        bytes += scrubbed.bytes;
        position = Some(scrubbed.next);
    }
    assert_eq!(bytes, bench.log().size());
}

#[test]
fn a_segment_without_timestamps_is_as_old_after_compaction_as_before() {
    let mut bench = Bench::new(config());
    let written = Timestamp(bench.time);
    bench.context.files.set_time(written);
    while bench.log().segment_count() < 4 {
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE);
        let own = bench.log().log_end().to_string();
        for key in ["everybody's", own.as_str()] {
            builder.append(Timestamp::NONE, Some(key.as_bytes()), Some(&[b'v'; 50]), &[]);
        }
        bench.append(builder);
    }
    let records = bench.records().len();
    bench.log().request_checkpoint();
    bench.settle().unwrap();
    bench.time += 10_000;
    bench.context.files.set_time(Timestamp(bench.time));
    bench.clean().unwrap();
    assert!(bench.records().len() < records);
    let ages = |bench: &mut Bench| -> Vec<Timestamp> {
        bench.log().segments.range(..3).map(|segment| segment.largest_timestamp()).collect()
    };
    assert_eq!(ages(&mut bench), [written; 3]);
    let now = bench.now();
    bench.log().close(now).unwrap();
    let (end, cleaned) = (bench.log().log_end(), bench.log().cleaned());
    bench.open(end, cleaned, true);
    assert_eq!(ages(&mut bench), [written; 3], "after a restart");
}

#[test]
fn a_segment_whose_roll_is_not_finished_is_not_cleaned() {
    let mut bench = Bench::new(config());
    for _ in 0..5 {
        bench.put(&[("a", Some("value"))]);
    }
    let (now, base) = (bench.now(), bench.log().active().base);
    // A checkpoint that ends where the segment does.
    bench.log().request_checkpoint();
    let checkpoint = bench.log().next_job(now).unwrap();
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::NONE);
    builder.append(now.wall, Some(b"a"), Some(&[b'v'; 400]), &[]);
    let mut batches = [Batch::from_bytes(&builder.finish().unwrap()).unwrap()];
    assert!(bench.log().append(&mut batches, LeaderEpoch(0), Origin::Coordinator, now)[0].is_ok());
    assert!(bench.log().active().base > base);
    bench.log().finish(checkpoint.run(), now).unwrap();
    let end = bench.log().log_end();
    bench.log().high_watermark_advanced(end);
    assert_eq!(bench.log().recovery_point(), bench.log().active().base);
    assert_eq!(bench.log().cleanable(end, now), None, "the roll is due");
    let roll = bench.log().next_job(now).unwrap();
    assert_eq!(bench.log().cleanable(end, now), None, "it is on its way");
    bench.log().finish(roll.run(), now).unwrap();
    assert!(bench.log().cleanable(end, now).is_some());
}
