//! Records of the metadata log and of `__consumer_offsets`: what a start replays.

use kuring::coordinator::Record as GroupRecord;
use kuring::metadata::{decode_records, encode_records};

use super::input::Input;

/// Records of either kind; what is read must come back the same.
pub fn state_records(data: &[u8]) {
    let mut input = Input::new(data);
    if input.flag() {
        let Ok(records) = decode_records(input.rest()) else { return };
        let mut bytes = Vec::new();
        encode_records(&records, &mut bytes);
        assert_eq!(decode_records(&bytes).expect("what was encoded can be decoded"), records);
        return;
    }
    let key_len = usize::from(input.u16());
    let has_value = input.flag();
    let key = input.take(key_len);
    let value = has_value.then(|| input.rest());
    let Ok(record) = GroupRecord::decode(key, value) else { return };
    // Of partitions' metadata, a record of older Kafka, only the deletion is ever written.
    if key.starts_with(&[0, 4]) && has_value {
        return;
    }
    let again = record.encode();
    let decoded = GroupRecord::decode(&again.key, again.value.as_deref());
    assert_eq!(decoded.expect("what was encoded can be decoded"), record);
}
