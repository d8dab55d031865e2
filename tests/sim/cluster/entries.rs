//! What lies in a log, record by record, and what of it a consumer sees that reads committed transactions alone.

use std::collections::{BTreeMap, BTreeSet};

use kuring::base::{Offset, ProducerEpoch, ProducerId};
use kuring::log::AbortedTransaction;
use kuring::wire::record::{BatchView, Batches, EndTxnMarker};

use super::checker::Value;

/// A record, or the end of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub offset: i64,
    /// Of the last record in its batch.
    pub batch_end: i64,
    pub producer: ProducerId,
    pub epoch: ProducerEpoch,
    pub is_transactional: bool,
    pub what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Value(Value),
    /// Whether it commits.
    End(bool),
}

impl Entry {
    pub fn value(&self) -> Option<Value> {
        match self.what {
            What::Value(value) => Some(value),
            What::End(_) => None,
        }
    }
}

/// All of `bytes`; a batch that is cut off at the end is left out.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let mut found = Vec::new();
    for batch in Batches::new(bytes) {
        let Ok(batch) = batch else { break };
        read_batch(&batch, &mut found)?;
    }
    Ok(found)
}

fn read_batch(batch: &BatchView<'_>, found: &mut Vec<Entry>) -> Result<(), String> {
    batch.check_crc().map_err(|error| error.to_string())?;
    let head = batch.head();
    let mut scratch = Vec::new();
    for record in batch.records(&mut scratch, 1 << 20).map_err(|error| error.to_string())? {
        let record = record.map_err(|error| error.to_string())?;
        let value = record.value.unwrap_or_default();
        let what = if head.attributes().is_control() {
            let marker = EndTxnMarker::from_record(record.key.unwrap_or_default(), value);
            What::End(marker.ok_or("a control record that ends nothing")?.commit)
        } else {
            let text = std::str::from_utf8(value).map_err(|error| error.to_string())?;
            let mut numbers = text.split(' ').filter_map(|number| number.parse().ok());
            What::Value(numbers.next().zip(numbers.next()).ok_or("a record that nobody wrote")?)
        };
        found.push(Entry {
            offset: record.offset.0,
            batch_end: head.last_offset().0,
            producer: head.producer_id(),
            epoch: head.producer_epoch(),
            is_transactional: head.attributes().is_transactional(),
            what,
        });
    }
    Ok(())
}

/// What is left for a consumer that was told of these aborted transactions, by the rule of Kafka's clients
/// (`CompletedFetch.nextFetchedRecord`).
pub fn committed(entries: &[Entry], aborted: &[AbortedTransaction]) -> Vec<(i64, Value)> {
    let mut to_come: Vec<(Offset, ProducerId)> = aborted.iter().map(|it| (it.first, it.producer)).collect();
    to_come.sort();
    let mut to_come = to_come.into_iter().peekable();
    let mut left_out = BTreeSet::new();
    let mut seen = Vec::new();
    for entry in entries {
        while let Some((_, producer)) = to_come.next_if(|(first, _)| first.0 <= entry.batch_end) {
            left_out.insert(producer);
        }
        match entry.what {
            What::End(false) => {
                left_out.remove(&entry.producer);
            }
            What::End(true) => {}
            What::Value(_) if entry.is_transactional && left_out.contains(&entry.producer) => {}
            What::Value(value) => seen.push((entry.offset, value)),
        }
    }
    seen
}

/// The transactions of a whole log, as its markers say.
#[derive(Default, Debug)]
pub struct Transactions {
    /// Where those begin that have no marker.
    pub open: BTreeMap<ProducerId, i64>,
    /// First record and marker.
    pub ended: Vec<(i64, i64)>,
    /// What was not aborted, of what is no transaction's or of one that has ended.
    pub decided: Vec<(i64, Value)>,
    pub aborted: BTreeSet<Value>,
}

impl Transactions {
    /// # Errors
    /// A record of a producer of an epoch before the one that was there already: it was fenced.
    pub fn of(entries: &[Entry]) -> Result<Self, String> {
        let mut found = Self::default();
        let mut epochs: BTreeMap<ProducerId, ProducerEpoch> = BTreeMap::new();
        let mut pending: BTreeMap<ProducerId, Vec<(i64, Value)>> = BTreeMap::new();
        for entry in entries {
            if entry.producer.is_some() {
                let epoch = epochs.entry(entry.producer).or_insert(entry.epoch);
                if entry.epoch < *epoch {
                    return Err(format!("{entry:?} comes behind epoch {epoch} of its producer"));
                }
                *epoch = entry.epoch;
            }
            match entry.what {
                What::Value(value) if entry.is_transactional => {
                    found.open.entry(entry.producer).or_insert(entry.offset);
                    pending.entry(entry.producer).or_default().push((entry.offset, value));
                }
                What::Value(value) => found.decided.push((entry.offset, value)),
                What::End(commits) => {
                    let values = pending.remove(&entry.producer).unwrap_or_default();
                    if let Some(first) = found.open.remove(&entry.producer) {
                        found.ended.push((first, entry.offset));
                    }
                    match commits {
                        true => found.decided.extend(values),
                        false => found.aborted.extend(values.into_iter().map(|(_, value)| value)),
                    }
                }
            }
        }
        found.decided.sort();
        Ok(found)
    }

    /// Where the first one begins that has no marker.
    pub fn first_open(&self) -> Option<i64> {
        self.open.values().copied().min()
    }

    /// The same of those whose marker is not below `high_watermark`.
    pub fn first_unreplicated(&self, high_watermark: Offset) -> Option<i64> {
        let unreplicated = self.ended.iter().filter(|(_, marker)| *marker >= high_watermark.0);
        unreplicated.map(|(first, _)| *first).min()
    }
}
