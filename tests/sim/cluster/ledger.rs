//! What became of transactions, as far as their producers and consumers know: none is read in part, or after it was
//! aborted.

use std::collections::BTreeMap;

use kuring::shard::PartitionKey;

use super::checker::Value;

/// The producer's number, and how many it began before.
pub type TransactionId = (usize, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nobody has asked for its commit.
    Open,
    /// Its producer asks for its commit and has no answer.
    Asked,
    /// Told to its producer, or read.
    Committed,
    Aborted,
}

#[derive(Debug)]
pub struct Known {
    pub fate: Fate,
    pub records: Vec<(PartitionKey, Value)>,
}

#[derive(Default)]
pub struct Ledger {
    pub transactions: BTreeMap<TransactionId, Known>,
    by_value: BTreeMap<Value, TransactionId>,
    pub committed: usize,
    pub aborted: usize,
}

impl Ledger {
    pub fn begun(&mut self, id: TransactionId, records: Vec<(PartitionKey, Value)>) {
        self.by_value.extend(records.iter().map(|(_, value)| (*value, id)));
        self.transactions.insert(id, Known { fate: Fate::Open, records });
    }

    /// Its producer asks for its end.
    pub fn asked(&mut self, id: TransactionId, commit: bool) {
        if let Some(known) = self.transactions.get_mut(&id)
            && known.fate == Fate::Open
            && commit
        {
            known.fate = Fate::Asked;
        }
    }

    /// Its producer is told its end.
    pub fn ended(&mut self, id: TransactionId, commit: bool, failure: &mut Option<String>) {
        let Some(known) = self.transactions.get_mut(&id) else { return };
        *(if commit { &mut self.committed } else { &mut self.aborted }) += 1;
        let fate = if commit { Fate::Committed } else { Fate::Aborted };
        let may_be =
            matches!((known.fate, commit), (Fate::Open, false) | (Fate::Asked | Fate::Committed, true));
        if !may_be {
            let text = format!("transaction {id:?} is told to be {fate:?} and was {:?}", known.fate);
            failure.get_or_insert(text);
        }
        known.fate = fate;
    }

    /// A consumer that wants committed transactions has read this.
    pub fn read(&mut self, value: Value) -> Result<(), String> {
        let Some(id) = self.by_value.get(&value) else { return Ok(()) };
        let Some(known) = self.transactions.get_mut(id) else { return Ok(()) };
        match known.fate {
            Fate::Open | Fate::Aborted => {
                Err(format!("{value:?} of transaction {id:?} is read, which is {:?}", known.fate))
            }
            Fate::Asked | Fate::Committed => {
                known.fate = Fate::Committed;
                Ok(())
            }
        }
    }

    pub fn is_of_transaction(&self, value: &Value) -> bool {
        self.by_value.contains_key(value)
    }
}
