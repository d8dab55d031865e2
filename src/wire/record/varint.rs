//! The signed, zig-zag variable-length integers of records (`org.apache.kafka.common.utils.ByteUtils`).

/// Reads an i32 of at most five bytes from `bytes` at `*position` and moves on; `None` if it does not end.
#[inline(always)]
pub fn read_i32(bytes: &[u8], position: &mut usize) -> Option<i32> {
    // Lengths and deltas of records mostly take one or two bytes.
    match bytes.get(*position..) {
        Some([first @ ..0x80, ..]) => {
            *position += 1;
            Some(unzigzag_i32(u32::from(*first)))
        }
        Some([first, second @ ..0x80, ..]) => {
            *position += 2;
            Some(unzigzag_i32(u32::from(*first & 0x7f) | u32::from(*second) << 7))
        }
        _ => read_long_i32(bytes, position),
    }
}

fn read_long_i32(bytes: &[u8], position: &mut usize) -> Option<i32> {
    let mut value: u32 = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = *bytes.get(*position)?;
        *position += 1;
        value |= u32::from(byte & 0x7f).wrapping_shl(shift);
        if byte < 0x80 {
            return Some(unzigzag_i32(value));
        }
    }
    None
}

/// Reads an i64 of at most ten bytes.
#[inline(always)]
pub fn read_i64(bytes: &[u8], position: &mut usize) -> Option<i64> {
    match bytes.get(*position..) {
        Some([first @ ..0x80, ..]) => {
            *position += 1;
            Some(unzigzag_i64(u64::from(*first)))
        }
        _ => read_long_i64(bytes, position),
    }
}

fn read_long_i64(bytes: &[u8], position: &mut usize) -> Option<i64> {
    let mut value: u64 = 0;
    for shift in [0, 7, 14, 21, 28, 35, 42, 49, 56, 63] {
        let byte = *bytes.get(*position)?;
        *position += 1;
        value |= u64::from(byte & 0x7f).wrapping_shl(shift);
        if byte < 0x80 {
            return Some(unzigzag_i64(value));
        }
    }
    None
}

pub fn write_i32(out: &mut Vec<u8>, value: i32) {
    write_u64(out, u64::from(zigzag_i32(value)));
}

pub fn write_i64(out: &mut Vec<u8>, value: i64) {
    write_u64(out, zigzag_i64(value));
}

/// Bytes that [`write_i32`] takes.
pub fn len_i32(value: i32) -> usize {
    len_u64(u64::from(zigzag_i32(value)))
}

/// Bytes that [`write_i64`] takes.
pub fn len_i64(value: i64) -> usize {
    len_u64(zigzag_i64(value))
}

fn write_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn len_u64(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

pub fn unzigzag_i32(value: u32) -> i32 {
    (value >> 1) as i32 ^ -((value & 1) as i32)
}

pub fn unzigzag_i64(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn zigzag_i32(value: i32) -> u32 {
    (value << 1 ^ value >> 31) as u32
}

fn zigzag_i64(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_come_back_and_take_the_announced_length(small: i32, large: i64) {
            let mut out = Vec::new();
            write_i32(&mut out, small);
            prop_assert_eq!(out.len(), len_i32(small));
            write_i64(&mut out, large);
            prop_assert_eq!(out.len(), len_i32(small) + len_i64(large));
            let mut position = 0;
            prop_assert_eq!(read_i32(&out, &mut position), Some(small));
            prop_assert_eq!(read_i64(&out, &mut position), Some(large));
            prop_assert_eq!(position, out.len());
        }
    }

    #[test]
    fn known_encodings() {
        for (value, bytes) in
            [(0, &[0u8][..]), (-1, &[1]), (1, &[2]), (63, &[0x7e]), (-64, &[0x7f]), (64, &[0x80, 1])]
        {
            let mut out = Vec::new();
            write_i32(&mut out, value);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn endless_integer_is_refused() {
        assert_eq!(read_i32(&[0xff; 20], &mut 0), None);
        assert_eq!(read_i64(&[0xff; 20], &mut 0), None);
        assert_eq!(read_i32(&[0x80], &mut 0), None);
    }
}
