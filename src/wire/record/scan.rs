//! Checks the records of a body that comes in pieces, without keeping any of it.

use super::records::{RecordFormatError, Skimmed, skim};
use super::varint;

/// What validation needs to know of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScannedRecord {
    /// The record's place in the batch, from 0.
    pub index: i32,
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub has_key: bool,
}

/// Reads records from a body in pieces of any size. Whole records inside a piece are parsed in place; one
/// that straddles pieces goes through a state machine field by field, so that even a record of 100 MB is
/// checked in constant memory.
#[derive(Clone, Debug)]
pub struct Scanner {
    count: i32,
    record_len_max: usize,
    found: i32,
    field: Field,
    varint: u64,
    varint_shift: u32,
    record_left: usize,
    skip_left: usize,
    headers_left: u32,
    timestamp_delta: i64,
    offset_delta: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Length,
    Attributes,
    TimestampDelta,
    OffsetDelta,
    KeyLength,
    Key,
    ValueLength,
    Value,
    HeaderCount,
    HeaderKeyLength,
    HeaderKey,
    HeaderValueLength,
    HeaderValue,
}

impl Scanner {
    /// Expects `count` records, as the batch's head says, none longer than `record_len_max` bytes.
    pub fn new(count: i32, record_len_max: usize) -> Self {
        Self {
            count,
            record_len_max,
            found: 0,
            field: Field::Length,
            varint: 0,
            varint_shift: 0,
            record_left: 0,
            skip_left: 0,
            headers_left: 0,
            timestamp_delta: 0,
            offset_delta: 0,
        }
    }

    /// Takes the next piece and calls `on_record` for each record whose key has been seen. A record told
    /// may still turn out broken behind its key; then this or [`Self::finish`] fails.
    pub fn feed(
        &mut self,
        mut piece: &[u8],
        mut on_record: impl FnMut(ScannedRecord),
    ) -> Result<(), RecordFormatError> {
        loop {
            if self.at_boundary() {
                self.feed_whole_records(&mut piece, &mut on_record)?;
            }
            if piece.is_empty() {
                return Ok(());
            }
            self.feed_field(&mut piece, &mut on_record)?;
        }
    }

    /// The body has ended.
    pub fn finish(&self) -> Result<(), RecordFormatError> {
        if !self.at_boundary() {
            return Err(RecordFormatError::Truncated);
        }
        if self.found < self.count {
            return Err(RecordFormatError::FewerThanCounted { count: self.count, found: self.found });
        }
        Ok(())
    }

    fn at_boundary(&self) -> bool {
        self.field == Field::Length && self.varint_shift == 0
    }

    /// The fast path: no state is kept within a record.
    fn feed_whole_records(
        &mut self,
        piece: &mut &[u8],
        on_record: &mut impl FnMut(ScannedRecord),
    ) -> Result<(), RecordFormatError> {
        while !piece.is_empty() {
            self.check_room()?;
            let mut start = 0;
            let Some(len) = varint::read_i32(piece, &mut start) else { return Ok(()) };
            let Some(end) = usize::try_from(len).ok().and_then(|len| start.checked_add(len)) else {
                return Ok(());
            };
            let Some((record, rest)) = piece.split_at_checked(end) else { return Ok(()) };
            self.check_len(len)?;
            let Skimmed { timestamp_delta, offset_delta, has_key } = skim(&record[start..])?;
            *piece = rest;
            on_record(ScannedRecord { index: self.found, timestamp_delta, offset_delta, has_key });
            self.found += 1;
        }
        Ok(())
    }

    /// Advances by at most one field. The piece is not empty.
    fn feed_field(
        &mut self,
        piece: &mut &[u8],
        on_record: &mut impl FnMut(ScannedRecord),
    ) -> Result<(), RecordFormatError> {
        match self.field {
            Field::Length => {
                self.check_room()?;
                let Some(len) = self.varint(piece, 5)? else { return Ok(()) };
                self.record_left = self.check_len(varint::unzigzag_i32(len as u32))?;
                self.field = Field::Attributes;
            }
            Field::Attributes => {
                self.spend(1)?;
                *piece = &piece[1..];
                self.field = Field::TimestampDelta;
            }
            Field::TimestampDelta => {
                let Some(delta) = self.varint(piece, 10)? else { return Ok(()) };
                self.timestamp_delta = varint::unzigzag_i64(delta);
                self.field = Field::OffsetDelta;
            }
            Field::OffsetDelta => {
                let Some(delta) = self.varint(piece, 5)? else { return Ok(()) };
                self.offset_delta = varint::unzigzag_i32(delta as u32);
                self.field = Field::KeyLength;
            }
            Field::KeyLength => {
                let Some(len) = self.nullable_len(piece)? else { return Ok(()) };
                on_record(ScannedRecord {
                    index: self.found,
                    timestamp_delta: self.timestamp_delta,
                    offset_delta: self.offset_delta,
                    has_key: len.is_some(),
                });
                self.start_skip(len.unwrap_or(0), Field::Key, Field::ValueLength)?;
            }
            Field::Key => self.skip(piece, Field::ValueLength),
            Field::ValueLength => {
                let Some(len) = self.nullable_len(piece)? else { return Ok(()) };
                self.start_skip(len.unwrap_or(0), Field::Value, Field::HeaderCount)?;
            }
            Field::Value => self.skip(piece, Field::HeaderCount),
            Field::HeaderCount => {
                let Some(count) = self.varint(piece, 5)? else { return Ok(()) };
                let count = varint::unzigzag_i32(count as u32);
                self.headers_left =
                    u32::try_from(count).map_err(|_| RecordFormatError::HeaderCount(count))?;
                self.next_header()?;
            }
            Field::HeaderKeyLength => {
                let Some(len) = self.nullable_len(piece)? else { return Ok(()) };
                let len = len.ok_or(RecordFormatError::Field)?;
                self.start_skip(len, Field::HeaderKey, Field::HeaderValueLength)?;
            }
            Field::HeaderKey => self.skip(piece, Field::HeaderValueLength),
            Field::HeaderValueLength => {
                let Some(len) = self.nullable_len(piece)? else { return Ok(()) };
                self.headers_left -= 1;
                self.start_skip(len.unwrap_or(0), Field::HeaderValue, Field::HeaderValue)?;
                if self.skip_left == 0 {
                    self.next_header()?;
                }
            }
            Field::HeaderValue => {
                self.skip(piece, Field::HeaderValue);
                if self.skip_left == 0 {
                    self.next_header()?;
                }
            }
        }
        Ok(())
    }

    fn check_room(&self) -> Result<(), RecordFormatError> {
        if self.found >= self.count {
            return Err(RecordFormatError::MoreThanCounted { count: self.count });
        }
        Ok(())
    }

    fn check_len(&self, len: i32) -> Result<usize, RecordFormatError> {
        let len_unsigned = usize::try_from(len).map_err(|_| RecordFormatError::Length(len))?;
        if len_unsigned > self.record_len_max {
            return Err(RecordFormatError::TooLong { len, len_max: self.record_len_max });
        }
        Ok(len_unsigned)
    }

    /// Goes to the next header or ends the record.
    fn next_header(&mut self) -> Result<(), RecordFormatError> {
        if self.headers_left > 0 {
            self.field = Field::HeaderKeyLength;
            return Ok(());
        }
        if self.record_left > 0 {
            return Err(RecordFormatError::Surplus);
        }
        self.found += 1;
        self.field = Field::Length;
        Ok(())
    }

    /// Collects a variable-length integer; `None` while the piece ends inside it.
    fn varint(&mut self, piece: &mut &[u8], len_max: u32) -> Result<Option<u64>, RecordFormatError> {
        while let [byte, rest @ ..] = *piece {
            if self.field != Field::Length {
                self.spend(1)?;
            }
            *piece = rest;
            self.varint |= u64::from(byte & 0x7f).wrapping_shl(self.varint_shift);
            self.varint_shift += 7;
            if *byte < 0x80 {
                let value = self.varint;
                (self.varint, self.varint_shift) = (0, 0);
                return Ok(Some(value));
            }
            if self.varint_shift >= 7 * len_max {
                return Err(RecordFormatError::Varint);
            }
        }
        Ok(None)
    }

    fn nullable_len(&mut self, piece: &mut &[u8]) -> Result<Option<Option<usize>>, RecordFormatError> {
        let len = self.varint(piece, 5)?;
        Ok(len.map(|len| usize::try_from(varint::unzigzag_i32(len as u32)).ok()))
    }

    /// Takes `len` bytes of the record for a run to be skipped in `field`, or goes to `after` if there are none.
    fn start_skip(&mut self, len: usize, field: Field, after: Field) -> Result<(), RecordFormatError> {
        self.spend(len)?;
        self.skip_left = len;
        self.field = if len == 0 { after } else { field };
        Ok(())
    }

    fn skip(&mut self, piece: &mut &[u8], after: Field) {
        let count = self.skip_left.min(piece.len());
        *piece = &piece[count..];
        self.skip_left -= count;
        if self.skip_left == 0 {
            self.field = after;
        }
    }

    fn spend(&mut self, len: usize) -> Result<(), RecordFormatError> {
        self.record_left = self.record_left.checked_sub(len).ok_or(RecordFormatError::Field)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::builder::tests::{Plain, plain_records};
    use super::super::builder::write_record;
    use super::super::records::parse;
    use super::*;

    fn scan(count: i32, body: &[u8], piece_len: usize) -> Result<Vec<ScannedRecord>, RecordFormatError> {
        let mut scanner = Scanner::new(count, 1 << 20);
        let mut seen = Vec::new();
        for piece in body.chunks(piece_len) {
            scanner.feed(piece, |record| seen.push(record))?;
        }
        scanner.finish().map(|()| seen)
    }

    fn body_of(records: &[Plain]) -> Vec<u8> {
        let mut body = Vec::new();
        for (index, record) in records.iter().enumerate() {
            let headers = record.headers();
            write_record(&mut body, record.timestamp, index as i32, record.key(), record.value(), &headers);
        }
        body
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_tell_the_same_records(records in plain_records(20), piece_len in 1usize..200) {
            let body = body_of(&records);
            let count = records.len() as i32;
            let whole = scan(count, &body, body.len().max(1)).unwrap();
            let keys: Vec<bool> = whole.iter().map(|record| record.has_key).collect();
            prop_assert_eq!(keys, records.iter().map(|record| record.key().is_some()).collect::<Vec<_>>());
            prop_assert_eq!(scan(count, &body, piece_len), Ok(whole));
        }

        #[test]
        fn damaged_bodies_fail_alike_whole_and_in_pieces(
            records in plain_records(8), at: prop::sample::Index, byte: u8, piece_len in 1usize..50,
        ) {
            let mut body = body_of(&records);
            prop_assume!(!body.is_empty());
            let at = at.index(body.len());
            body[at] = byte;
            let count = records.len() as i32;
            let whole = scan(count, &body, body.len());
            let pieces = scan(count, &body, piece_len);
            prop_assert_eq!(whole.is_ok(), pieces.is_ok(), "{:?} {:?}", whole, pieces);
            let mut position = 0;
            let mut parsed = Vec::new();
            while position < body.len() && parsed.len() <= records.len() {
                match parse(&body, &mut position) {
                    Ok(record) => parsed.push((record.timestamp_delta, record.offset_delta, record.key.is_some())),
                    Err(_) => break,
                }
            }
            prop_assert_eq!(whole.is_ok(), position == body.len() && parsed.len() == records.len());
            if let (Ok(whole), Ok(pieces)) = (whole, pieces) {
                let skimmed: Vec<_> =
                    whole.iter().map(|one| (one.timestamp_delta, one.offset_delta, one.has_key)).collect();
                prop_assert_eq!(skimmed, parsed);
                prop_assert_eq!(whole, pieces);
            }
        }
    }

    #[test]
    fn record_above_the_limit_is_refused_before_its_bytes_arrive() {
        let mut body = Vec::new();
        write_record(&mut body, 0, 0, None, Some(&[7; 100]), &[]);
        for piece in [&body[..], &body[..2]] {
            let outcome = Scanner::new(1, 100).feed(piece, |_| {});
            assert!(matches!(outcome, Err(RecordFormatError::TooLong { len_max: 100, .. })));
        }
    }

    #[test]
    fn count_of_the_head_must_agree() {
        let mut body = Vec::new();
        write_record(&mut body, 0, 0, None, Some(b"v"), &[]);
        for piece_len in [1, 100] {
            assert_eq!(
                scan(2, &body, piece_len),
                Err(RecordFormatError::FewerThanCounted { count: 2, found: 1 })
            );
            assert_eq!(scan(0, &body, piece_len), Err(RecordFormatError::MoreThanCounted { count: 0 }));
        }
    }
}
