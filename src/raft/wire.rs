//! What controllers ask each other, as bytes: the bodies of `peer`'s frames. Pure. Entries, votes and log ids have
//! their stored form ([`super::codec`]). A length or count is believed only as far as the bytes are there.

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};

use super::codec::{
    self, decode_entry, encode_entry, read_log_id_option, read_vote, write_log_id_option, write_vote,
};
use super::snapshots::SNAPSHOT_BYTES_MAX;
use super::types::{Entry, LogId, Seat, SnapshotMeta, Types, Vote};
use crate::metadata::{DecodeError, Reader, Writer};

/// Entries of one request: as many as fit into this, and one in any case.
const ENTRIES_BYTES_MAX: usize = 1 << 20;
/// Bytes of a snapshot in one request.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

const SUCCESS: u8 = 0;
const PARTIAL: u8 = 1;
const CONFLICT: u8 = 2;
const HIGHER_VOTE: u8 = 3;

/// The body of a request, and the last of its entries that went into it if not all did.
pub fn append_request(request: &AppendEntriesRequest<Types>) -> (Vec<u8>, Option<LogId>) {
    let mut entries = Vec::new();
    let mut one = Vec::new();
    let mut count = 0;
    for entry in &request.entries {
        one.clear();
        encode_entry(entry, &mut one);
        if count > 0 && entries.len() + one.len() > ENTRIES_BYTES_MAX {
            break;
        }
        Writer(&mut entries).unsigned(one.len() as u64);
        entries.extend_from_slice(&one);
        count += 1;
    }
    let cut = (count < request.entries.len()).then(|| request.entries[count - 1].log_id);
    let mut body = Vec::with_capacity(entries.len() + 128);
    let mut writer = Writer(&mut body);
    write_vote(&mut writer, &request.vote);
    write_log_id_option(&mut writer, &request.prev_log_id);
    write_log_id_option(&mut writer, &request.leader_commit);
    writer.unsigned(count as u64);
    body.extend_from_slice(&entries);
    (body, cut)
}

pub fn read_append_request(body: &[u8]) -> Result<AppendEntriesRequest<Types>, DecodeError> {
    let mut reader = Reader(body);
    let vote = read_vote(&mut reader)?;
    let prev_log_id = read_log_id_option(&mut reader)?;
    let leader_commit = read_log_id_option(&mut reader)?;
    let count = reader.unsigned()?;
    let mut entries: Vec<Entry> = Vec::new();
    let mut next = prev_log_id.map_or(0, |log_id| log_id.index.saturating_add(1));
    for _ in 0..count {
        let length = usize::try_from(reader.unsigned()?).map_err(|_| DecodeError::Short)?;
        let entry = decode_entry(reader.bytes(length)?)?;
        // The log takes them as they come.
        if entry.log_id.index != next {
            return Err(DecodeError::Value("row of entries"));
        }
        next = next.saturating_add(1);
        entries.push(entry);
    }
    reader.end()?;
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

pub fn append_answer(response: &AppendEntriesResponse<Types>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    match response {
        AppendEntriesResponse::Success => writer.u8(SUCCESS),
        AppendEntriesResponse::PartialSuccess(log_id) => {
            writer.u8(PARTIAL);
            write_log_id_option(&mut writer, log_id);
        }
        AppendEntriesResponse::Conflict => writer.u8(CONFLICT),
        AppendEntriesResponse::HigherVote(vote) => {
            writer.u8(HIGHER_VOTE);
            write_vote(&mut writer, vote);
        }
    }
    body
}

pub fn read_append_answer(body: &[u8]) -> Result<AppendEntriesResponse<Types>, DecodeError> {
    let mut reader = Reader(body);
    let response = match reader.u8()? {
        SUCCESS => AppendEntriesResponse::Success,
        PARTIAL => AppendEntriesResponse::PartialSuccess(read_log_id_option(&mut reader)?),
        CONFLICT => AppendEntriesResponse::Conflict,
        HIGHER_VOTE => AppendEntriesResponse::HigherVote(read_vote(&mut reader)?),
        _ => return Err(DecodeError::Value("kind of answer")),
    };
    reader.end()?;
    Ok(response)
}

pub fn vote_request(request: &VoteRequest<Types>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    write_vote(&mut writer, &request.vote);
    write_log_id_option(&mut writer, &request.last_log_id);
    writer.bool(request.leadership_transfer);
    body
}

pub fn read_vote_request(body: &[u8]) -> Result<VoteRequest<Types>, DecodeError> {
    let mut reader = Reader(body);
    let mut request = VoteRequest::new(read_vote(&mut reader)?, read_log_id_option(&mut reader)?);
    request.leadership_transfer = reader.bool()?;
    reader.end()?;
    Ok(request)
}

pub fn vote_answer(response: &VoteResponse<Types>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    write_vote(&mut writer, &response.vote);
    write_log_id_option(&mut writer, &response.last_log_id);
    writer.bool(response.vote_granted);
    body
}

pub fn read_vote_answer(body: &[u8]) -> Result<VoteResponse<Types>, DecodeError> {
    let mut reader = Reader(body);
    let (vote, last_log_id) = (read_vote(&mut reader)?, read_log_id_option(&mut reader)?);
    let response = VoteResponse::new(vote, last_log_id, reader.bool()?);
    reader.end()?;
    Ok(response)
}

/// A part of a snapshot's state.
#[derive(PartialEq, Eq, Debug)]
pub struct Chunk<'a> {
    pub vote: Vote,
    pub meta: SnapshotMeta,
    /// Of the whole state.
    pub length: usize,
    pub crc: u32,
    pub offset: usize,
    pub bytes: &'a [u8],
}

pub fn chunk(chunk: &Chunk<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(chunk.bytes.len() + 512);
    let mut writer = Writer(&mut body);
    write_vote(&mut writer, &chunk.vote);
    codec::send_snapshot_meta(&mut writer, &chunk.meta);
    writer.unsigned(chunk.length as u64);
    writer.unsigned(u64::from(chunk.crc));
    writer.unsigned(chunk.offset as u64);
    body.extend_from_slice(chunk.bytes);
    body
}

pub fn read_chunk(body: &[u8]) -> Result<Chunk<'_>, DecodeError> {
    let mut reader = Reader(body);
    let vote = read_vote(&mut reader)?;
    let meta = codec::receive_snapshot_meta(&mut reader)?;
    let mut size = || usize::try_from(reader.unsigned()?).map_err(|_| DecodeError::Value("size"));
    let (length, crc, offset) = (size()?, size()?, size()?);
    let crc = u32::try_from(crc).map_err(|_| DecodeError::Value("checksum"))?;
    let bytes = reader.0;
    let end = offset.checked_add(bytes.len());
    if length > SNAPSHOT_BYTES_MAX || end.is_none_or(|end| end > length) {
        return Err(DecodeError::Value("size of a snapshot"));
    }
    Ok(Chunk { vote, meta, length, crc, offset, bytes })
}

/// Where a snapshot's receiver stands.
#[derive(PartialEq, Eq, Debug)]
pub struct ChunkAnswer {
    pub vote: Vote,
    /// The offset that it wants next.
    pub next: usize,
    /// The whole snapshot has been taken over.
    pub is_installed: bool,
}

pub fn chunk_answer(answer: &ChunkAnswer) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    write_vote(&mut writer, &answer.vote);
    writer.unsigned(answer.next as u64);
    writer.bool(answer.is_installed);
    body
}

pub fn read_chunk_answer(body: &[u8]) -> Result<ChunkAnswer, DecodeError> {
    let mut reader = Reader(body);
    let vote = read_vote(&mut reader)?;
    let next = usize::try_from(reader.unsigned()?).map_err(|_| DecodeError::Value("size"))?;
    let is_installed = reader.bool()?;
    reader.end()?;
    Ok(ChunkAnswer { vote, next, is_installed })
}

impl From<ChunkAnswer> for SnapshotResponse<Types> {
    fn from(answer: ChunkAnswer) -> Self {
        SnapshotResponse::new(answer.vote)
    }
}

pub fn transfer_request(request: &TransferLeaderRequest<Types>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    write_vote(&mut writer, request.from_leader());
    writer.unsigned(request.to_node_id().0);
    write_log_id_option(&mut writer, &request.last_log_id().copied());
    body
}

pub fn read_transfer_request(body: &[u8]) -> Result<TransferLeaderRequest<Types>, DecodeError> {
    let mut reader = Reader(body);
    let (from, to) = (read_vote(&mut reader)?, Seat(reader.unsigned()?));
    let request = TransferLeaderRequest::new(from, to, read_log_id_option(&mut reader)?);
    reader.end()?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;

    use super::super::types::{CommittedLeaderId, LeaderId, Proposal};
    use super::*;
    use crate::metadata::Record;

    fn vote(term: u64) -> Vote {
        Vote { leader_id: LeaderId { term, voted_for: Seat(2) }, committed: true }
    }

    fn log_id(index: u64) -> LogId {
        LogId { leader_id: CommittedLeaderId::from(3), index }
    }

    fn entry(index: u64, bytes: usize) -> Entry {
        let records = vec![Record::Feature { name: "x".repeat(bytes), level: 1 }];
        Entry { log_id: log_id(index), payload: EntryPayload::Normal(Proposal { records: records.into() }) }
    }

    fn request(entries: Vec<Entry>) -> AppendEntriesRequest<Types> {
        let prev_log_id = entries.first().map(|entry| log_id(entry.log_id.index - 1));
        AppendEntriesRequest { vote: vote(4), prev_log_id, entries, leader_commit: Some(log_id(1)) }
    }

    fn refuses_prefixes<T>(body: &[u8], read: impl Fn(&[u8]) -> Result<T, DecodeError>) {
        for end in 0..body.len() {
            assert!(read(&body[..end]).is_err(), "{end} of {}", body.len());
        }
        assert!(read(&[body, b"x"].concat()).is_err());
    }

    #[test]
    fn entries_come_back_as_they_were() {
        let sent = request(vec![entry(5, 3), entry(6, 0)]);
        let (body, cut) = append_request(&sent);
        assert_eq!(cut, None);
        let read = read_append_request(&body).unwrap();
        assert_eq!(
            (read.vote, read.prev_log_id, read.leader_commit),
            (sent.vote, sent.prev_log_id, sent.leader_commit)
        );
        assert_eq!(format!("{:?}", read.entries), format!("{:?}", sent.entries));
        refuses_prefixes(&body, read_append_request);
        let (body, _) = append_request(&request(Vec::new()));
        assert_eq!(read_append_request(&body).unwrap().prev_log_id, None);
    }

    #[test]
    fn more_entries_than_fit_are_left_for_the_next_request_and_one_always_goes() {
        let (body, cut) = append_request(&request((5..9).map(|index| entry(index, 400 << 10)).collect()));
        assert_eq!(cut, Some(log_id(6)));
        assert_eq!(read_append_request(&body).unwrap().entries.len(), 2);
        let (body, cut) = append_request(&request(vec![entry(5, 2 << 20), entry(6, 1)]));
        assert_eq!(cut, Some(log_id(5)));
        assert!(body.len() > 2 << 20);
    }

    #[test]
    fn entries_with_a_gap_are_refused() {
        let (body, _) = append_request(&request(vec![entry(5, 1), entry(7, 1)]));
        assert_eq!(read_append_request(&body).err(), Some(DecodeError::Value("row of entries")));
    }

    #[test]
    fn a_count_beyond_the_bytes_takes_no_memory() {
        let mut body = Vec::new();
        let mut writer = Writer(&mut body);
        write_vote(&mut writer, &vote(1));
        write_log_id_option(&mut writer, &None);
        write_log_id_option(&mut writer, &None);
        writer.unsigned(u64::MAX);
        assert!(read_append_request(&body).is_err());
    }

    #[test]
    fn answers_and_votes_come_back_as_they_were() {
        for response in [
            AppendEntriesResponse::Success,
            AppendEntriesResponse::PartialSuccess(Some(log_id(9))),
            AppendEntriesResponse::PartialSuccess(None),
            AppendEntriesResponse::Conflict,
            AppendEntriesResponse::HigherVote(vote(9)),
        ] {
            let body = append_answer(&response);
            assert_eq!(read_append_answer(&body), Ok(response));
            refuses_prefixes(&body, read_append_answer);
        }
        let mut request = VoteRequest::new(vote(7), Some(log_id(3)));
        request.leadership_transfer = true;
        let body = vote_request(&request);
        assert_eq!(read_vote_request(&body), Ok(request));
        refuses_prefixes(&body, read_vote_request);
        let response = VoteResponse::new(vote(7), None, true);
        let body = vote_answer(&response);
        assert_eq!(read_vote_answer(&body), Ok(response));
        refuses_prefixes(&body, read_vote_answer);
        let request = TransferLeaderRequest::new(vote(7), Seat(3), Some(log_id(8)));
        let body = transfer_request(&request);
        assert_eq!(read_transfer_request(&body), Ok(request));
        refuses_prefixes(&body, read_transfer_request);
    }

    #[test]
    fn chunks_of_a_snapshot_come_back_and_no_size_beyond_the_limit_passes() {
        let meta = SnapshotMeta { last_log_id: Some(log_id(5)), ..SnapshotMeta::default() };
        let whole = |length, offset| Chunk {
            vote: vote(1),
            meta: meta.clone(),
            length,
            crc: 9,
            offset,
            bytes: b"abc",
        };
        assert_eq!(read_chunk(&chunk(&whole(10, 7))), Ok(whole(10, 7)));
        for (length, offset) in [(10, 8), (SNAPSHOT_BYTES_MAX + 1, 0), (10, usize::MAX)] {
            assert!(read_chunk(&chunk(&whole(length, offset))).is_err());
        }
        let answer = ChunkAnswer { vote: vote(2), next: 3, is_installed: true };
        let body = chunk_answer(&answer);
        assert_eq!(read_chunk_answer(&body), Ok(answer));
        refuses_prefixes(&body, read_chunk_answer);
    }
}
