//! What a controller says of the quorum to whoever is none of it yet, or never will be, as bytes. Pure; a count is
//! believed only as far as the bytes are there.
//! ```text
//! Word  term · leader + 1 or 0 · controllers: how many, then of each node, host, port
//! ```

use std::collections::BTreeMap;

use super::leadership::Leadership;
use crate::base::BrokerId;
use crate::metadata::{DecodeError, Reader, Writer};
use crate::peer::{Address, Roster};

/// Who leads and where the controllers are, as far as whoever says it knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Word {
    pub term: u64,
    pub leader: Option<BrokerId>,
    pub controllers: BTreeMap<BrokerId, Address>,
}

impl Word {
    pub fn of(leadership: Leadership, roster: &Roster) -> Self {
        let Leadership { term, leader, .. } = leadership;
        Self { term, leader, controllers: roster.controllers() }
    }

    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.unsigned(self.term);
        writer.unsigned(self.leader.map_or(0, |leader| leader.0 as u64 + 1));
        writer.unsigned(self.controllers.len() as u64);
        for (node, address) in &self.controllers {
            writer.unsigned(node.0 as u64);
            write_address(writer, address);
        }
    }

    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let term = reader.unsigned()?;
        let leader = match reader.unsigned()? {
            0 => None,
            number => Some(node(number - 1)?),
        };
        let mut controllers = BTreeMap::new();
        for _ in 0..reader.unsigned()? {
            let node = node(reader.unsigned()?)?;
            controllers.insert(node, read_address(reader)?);
        }
        Ok(Self { term, leader, controllers })
    }
}

pub fn write_address(writer: &mut Writer<'_>, (host, port): &Address) {
    writer.text(host);
    writer.unsigned(u64::from(*port));
}

pub fn read_address(reader: &mut Reader<'_>) -> Result<Address, DecodeError> {
    let host = reader.text()?.to_owned();
    let port = u16::try_from(reader.unsigned()?).map_err(|_| DecodeError::Value("port"))?;
    Ok((host, port))
}

fn node(number: u64) -> Result<BrokerId, DecodeError> {
    i32::try_from(number).map(BrokerId).map_err(|_| DecodeError::Value("node id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8]) -> Result<Word, DecodeError> {
        let mut reader = Reader(body);
        let word = Word::read(&mut reader)?;
        reader.end()?;
        Ok(word)
    }

    #[test]
    fn a_word_is_these_bytes_and_comes_back_and_no_part_of_it_passes() {
        let one = BTreeMap::from([(BrokerId(1), ("h".to_owned(), 9))]);
        for (leader, controllers) in [(None, BTreeMap::new()), (Some(BrokerId(0)), one)] {
            let word = Word { term: 7, leader, controllers };
            let mut body = Vec::new();
            word.write(&mut Writer(&mut body));
            let expected: &[u8] = if leader.is_some() { &[7, 1, 1, 1, 1, b'h', 9] } else { &[7, 0, 0] };
            assert_eq!(body, expected);
            assert_eq!(read(&body), Ok(word));
            for end in 0..body.len() {
                assert!(read(&body[..end]).is_err(), "{end}");
            }
        }
        let far = [7, 0, 1, 1, 1, b'h', 0xff, 0xff, 0x7f];
        assert_eq!(read(&far), Err(DecodeError::Value("port")));
    }
}
