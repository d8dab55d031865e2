//! One worker that produces: its thread, its connections, its part of the schedule.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::{ProduceRequest, ResponseHeader};
use kafka_protocol::protocol::{Decodable, HeaderVersion};
use rustix::event::{PollFd, PollFlags};

use super::body::{Bodies, Body, compress};
use super::live::Live;
use super::plan::{Identity, LinkPlan, Plan, Share};
use super::produce_frame::{BatchFields, FrameTemplate, unwritten};
use super::report::Recorder;
use super::schedule::Schedule;
use super::transaction::Transactions;
use super::{Outcome, ProduceLoad, wait};
use crate::base::PartitionIndex;
use crate::base::clock::{Monotonic, monotonic, wall};
use crate::client::producer::{Acks, Sequence};
use crate::client::{ClientError, Connection, Result, code_name, decode};
use crate::wire::ErrorCode;
use crate::wire::record::{Codec, increment_sequence};

/// A broker that does not answer for so long has failed.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long after the end of a run its backlog is still sent.
const BACKLOG_WAIT_MAX: Duration = Duration::from_secs(1);
const POLL_WAIT_MAX: Duration = Duration::from_millis(100);

pub struct ProduceWorker {
    load: ProduceLoad,
    bodies: Arc<Bodies>,
    schedule: Schedule,
    links: Vec<Link>,
    recorder: Recorder,
    version: i16,
    /// Records given to connections so far.
    sent: u64,
    turn: usize,
    stamped: bool,
}

/// One connection and the partitions behind it.
struct Link {
    address: String,
    connection: Connection,
    targets: Vec<Target>,
    next_target: usize,
    next_correlation: i32,
    in_flight: VecDeque<Sent>,
    writing: Option<Writing>,
    head: Vec<u8>,
    /// A body of its own: stamped, or compressed for an odd count.
    own_body: Option<Body>,
    own_bytes: Vec<u8>,
    transactions: Option<Transactions>,
}

struct Target {
    partition: PartitionIndex,
    template: FrameTemplate,
    sequence: Option<Sequence>,
}

/// A request on its way or not yet answered.
#[derive(Clone, Copy)]
struct Sent {
    correlation: i32,
    first: u64,
    count: u64,
    at: Monotonic,
}

struct Writing {
    sent: Sent,
    body: BodyAt,
    tail: &'static [u8],
    written: usize,
}

/// Where the body of the frame being written lies.
#[derive(Clone, Copy)]
enum BodyAt {
    Shared { turn: usize, count: usize },
    Own { count: usize },
    OwnBytes,
}

impl ProduceWorker {
    pub fn new(
        plan: &Plan,
        share: &Share,
        load: ProduceLoad,
        bodies: Arc<Bodies>,
        ids: &mut impl Iterator<Item = Identity>,
        stamped: bool,
    ) -> Result<Self> {
        let links = share.links.iter().map(|link| Link::open(plan, link, &load, ids.next()));
        Ok(Self {
            links: links.collect::<Result<_>>()?,
            version: plan.produce_version,
            schedule: Schedule::new(Monotonic::ZERO, None),
            recorder: Recorder::new(Monotonic::ZERO),
            load,
            bodies,
            sent: 0,
            turn: 0,
            stamped,
        })
    }

    /// Runs the schedule to its end and waits for the last answers.
    pub fn run(mut self, schedule: Schedule, measure_from: Monotonic, live: &Live) -> Outcome {
        self.schedule = schedule;
        self.recorder = Recorder::new(measure_from);
        let end = self.load.duration.map(|duration| measure_from.plus(duration));
        live.worker_ready();
        loop {
            let now = monotonic();
            let over = live.is_stopped()
                || end.is_some_and(|end| self.is_over(end, now))
                || self.load.records.is_some_and(|records| self.sent >= records);
            self.end_transactions(now, over)?;
            let next = if over { None } else { self.send_due(now, end, live)? };
            if over && self.links.iter().all(Link::is_idle) {
                break;
            }
            self.wait(next, now, live)?;
        }
        if self.schedule.is_paced() {
            let now = monotonic();
            let due = self.schedule.count(end.map_or(now, |end| end.min(now)));
            self.recorder.unsent(due.min(self.load.records.unwrap_or(u64::MAX)).saturating_sub(self.sent));
        }
        Ok(self.recorder)
    }

    /// The time is over. What was due before is still sent, unless the broker is far behind.
    fn is_over(&self, end: Monotonic, now: Monotonic) -> bool {
        let all_sent = !self.schedule.is_paced() || self.sent >= self.schedule.count(end);
        now >= end && (all_sent || now >= end.plus(BACKLOG_WAIT_MAX))
    }

    /// Sends every batch that is due and that a connection has room for. Returns when the next one is due;
    /// `None`: it is due already, and waits for room.
    fn send_due(&mut self, now: Monotonic, end: Option<Monotonic>, live: &Live) -> Result<Option<Monotonic>> {
        let last_due = end.map_or(now, |end| now.min(end));
        let hurry = last_due < now;
        loop {
            let limit = self.load.records.unwrap_or(u64::MAX);
            let available = self.schedule.count(last_due).min(limit).saturating_sub(self.sent);
            let full = (self.bodies.records_max() as u64).min(limit - self.sent);
            if full == 0 {
                return Ok(None);
            }
            let count = available.min(full);
            let send_at = if count == full || hurry {
                now
            } else {
                let lingered = self.schedule.due(self.sent).plus(self.load.linger);
                lingered.min(self.schedule.due(self.sent + full - 1))
            };
            if count == 0 && hurry {
                return Ok(None);
            }
            if count == 0 || send_at > now {
                return Ok(Some(send_at.max(self.schedule.due(self.sent))));
            }
            let Some(index) = self.free_link(now) else { return Ok(None) };
            self.start(index, count, now)?;
            self.write(index, live)?;
        }
    }

    /// The next connection in turn that has no frame half-written and may have another in flight.
    fn free_link(&mut self, now: Monotonic) -> Option<usize> {
        let count = self.links.len();
        let in_flight_max = self.load.in_flight_max;
        let free = |link: &Link| {
            link.writing.is_none()
                && !link.connection.is_connecting()
                && link.in_flight.len() < in_flight_max
                && link.transactions.as_ref().is_none_or(|transactions| transactions.may_send(now))
        };
        (0..count).map(|step| (self.turn + step) % count).find(|&index| free(&self.links[index]))
    }

    /// Commits the transactions that have had their time and whose batches are all answered.
    fn end_transactions(&mut self, now: Monotonic, over: bool) -> Result<()> {
        for link in &mut self.links {
            let is_quiet = link.writing.is_none() && link.in_flight.is_empty();
            let Some(transactions) = link.transactions.as_mut().filter(|_| is_quiet) else { continue };
            if !transactions.is_open() || transactions.is_ending() || !(over || transactions.is_due(now)) {
                continue;
            }
            let correlation = link.next_correlation;
            link.next_correlation = correlation.wrapping_add(1).max(0);
            let frame = transactions.end(correlation)?;
            link.connection.send(frame).map_err(|error| link.lost(error.to_string()))?;
        }
        Ok(())
    }

    fn start(&mut self, index: usize, count: u64, now: Monotonic) -> Result<()> {
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        let compression = self.bodies.compression();
        let link = &mut self.links[index];
        let records = count as usize;
        let shared = self.bodies.get(turn);
        let plain = if self.stamped {
            let own = link.own_body.get_or_insert_with(|| shared.clone());
            for record in 0..records {
                own.stamp(record, self.schedule.due(self.sent + record as u64).as_nanos());
            }
            own.plain(records)
        } else {
            shared.plain(records)
        };
        let body = match (compression.codec, shared.whole_compressed(records)) {
            (Codec::None, _) if self.stamped => BodyAt::Own { count: records },
            (Codec::None, _) => BodyAt::Shared { turn, count: records },
            (_, Some(_)) if !self.stamped => BodyAt::Shared { turn, count: records },
            _ => {
                link.own_bytes = compress(compression, plain)?;
                BodyAt::OwnBytes
            }
        };
        let bytes = body_bytes(&self.bodies, link.own_body.as_ref(), &link.own_bytes, body);
        let position = link.next_target;
        link.next_target = (position + 1) % link.targets.len();
        let target = &mut link.targets[position];
        let fields = BatchFields {
            codec: compression.codec,
            count: records,
            timestamp: wall(),
            sequence: target.sequence,
            is_transactional: link.transactions.is_some(),
        };
        if let Some(transactions) = &mut link.transactions {
            transactions.note_sent(now);
        }
        if let Some(sequence) = &mut target.sequence {
            sequence.base = increment_sequence(sequence.base, records as i32);
        }
        let correlation = link.next_correlation;
        link.next_correlation = correlation.wrapping_add(1).max(0);
        target.template.write_head(correlation, &fields, bytes, &mut link.head);
        let sent = Sent { correlation, first: self.sent, count, at: now };
        link.writing = Some(Writing { sent, body, tail: target.template.tail(), written: 0 });
        self.sent += count;
        Ok(())
    }

    /// Writes as much of the current frame as the socket takes.
    fn write(&mut self, index: usize, live: &Live) -> Result<()> {
        let link = &mut self.links[index];
        let Some(writing) = &mut link.writing else { return Ok(()) };
        let body = body_bytes(&self.bodies, link.own_body.as_ref(), &link.own_bytes, writing.body);
        let total = link.head.len() + body.len() + writing.tail.len();
        while writing.written < total {
            let slices: [IoSlice<'_>; 3] = unwritten([&link.head, body, writing.tail], writing.written);
            match link.connection.write_borrowed(&slices) {
                Ok(0) => return Ok(()),
                Ok(count) => writing.written += count,
                Err(error) => return Err(link.lost(error.to_string())),
            }
        }
        let sent = writing.sent;
        link.writing = None;
        if self.load.acks == Acks::None {
            self.done(sent, monotonic(), live);
        } else {
            link.in_flight.push_back(sent);
        }
        Ok(())
    }

    fn wait(&mut self, next: Option<Monotonic>, now: Monotonic, live: &Live) -> Result<()> {
        let timeout = next.map_or(POLL_WAIT_MAX, |next| next.since(now).min(POLL_WAIT_MAX));
        let returned = {
            let interest = |link: &Link| {
                if link.writing.is_some() {
                    PollFlags::IN | PollFlags::OUT
                } else {
                    link.connection.interest()
                }
            };
            let mut fds: Vec<PollFd<'_>> = self
                .links
                .iter()
                .map(|link| PollFd::from_borrowed_fd(link.connection.as_fd(), interest(link)))
                .collect();
            wait(&mut fds, timeout)?
        };
        for (index, flags) in returned.into_iter().enumerate() {
            if flags.is_empty() {
                continue;
            }
            let link = &mut self.links[index];
            if link.connection.is_connecting() || !link.connection.is_written() {
                link.connection.on_writable().map_err(|error| link.lost(error.to_string()))?;
            }
            if flags.contains(PollFlags::OUT) {
                self.write(index, live)?;
            }
            if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.read(index, live)?;
            }
        }
        let now = monotonic();
        match self
            .links
            .iter()
            .find(|link| link.in_flight.front().is_some_and(|sent| now.since(sent.at) > ANSWER_WAIT_MAX))
        {
            Some(link) => Err(link.lost("a request was not answered in time".into())),
            None => Ok(()),
        }
    }

    fn read(&mut self, index: usize, live: &Live) -> Result<()> {
        let link = &mut self.links[index];
        let open = link.connection.read_some().map_err(|error| link.lost(error.to_string()))?;
        let now = monotonic();
        let mut done = Vec::new();
        while let Some(frame) = link.connection.next_frame().map_err(ClientError::Io)? {
            if let Some(transactions) = link.transactions.as_mut().filter(|it| it.is_ending()) {
                if let Some(next) = transactions.ended(frame)? {
                    link.targets.iter_mut().for_each(|target| target.sequence = Some(next));
                }
                continue;
            }
            let sent = link.in_flight.pop_front();
            let error = read_answer(frame, self.version, sent.map(|sent| sent.correlation))?;
            done.extend(sent.map(|sent| (sent, error)));
        }
        if !open {
            return Err(self.links[index].lost("the broker closed it".into()));
        }
        for (sent, error) in done {
            match error {
                None => self.done(sent, now, live),
                // The batches behind it, and the commit, would be refused.
                Some(error) if self.links[index].transactions.is_some() => {
                    return Err(self.links[index].lost(error));
                }
                Some(error) => self.recorder.fail(sent.count, || error),
            }
        }
        Ok(())
    }

    fn done(&mut self, sent: Sent, now: Monotonic, live: &Live) {
        let bytes = sent.count * self.load.record_bytes as u64;
        let measured = self.recorder.count(sent.count, bytes, now);
        if !self.schedule.is_paced() {
            let latency = now.since(sent.at);
            live.add(sent.count, bytes, latency);
            if measured {
                self.recorder.latency(latency, sent.count);
            }
            return;
        }
        live.add(sent.count, bytes, now.since(self.schedule.due(sent.first)));
        if measured {
            for record in sent.first..sent.first + sent.count {
                self.recorder.latency(now.since(self.schedule.due(record)), 1);
            }
        }
    }
}

impl Link {
    fn open(plan: &Plan, link: &LinkPlan, load: &ProduceLoad, identity: Option<Identity>) -> Result<Self> {
        let address = link.address.to_string();
        let connection = Connection::open(link.address, plan.response_bytes_max)
            .map_err(|error| ClientError::Connect { address: address.clone(), reason: error.to_string() })?;
        let timeout_ms = ANSWER_WAIT_MAX.as_millis() as i32;
        let sequence = identity.as_ref().map(|identity| identity.sequence);
        let transactional_id = identity.as_ref().and_then(|identity| identity.transactional_id.as_deref());
        let target = |partition: &super::plan::PartitionPlan| {
            let template =
                FrameTemplate::new(plan, partition.index, load.acks, timeout_ms, transactional_id)?;
            Ok(Target { partition: partition.index, template, sequence })
        };
        Ok(Self {
            address,
            connection,
            targets: link.partitions.iter().map(target).collect::<Result<_>>()?,
            next_target: 0,
            next_correlation: 0,
            in_flight: VecDeque::new(),
            writing: None,
            head: Vec::new(),
            own_body: None,
            own_bytes: Vec::new(),
            transactions: identity
                .as_ref()
                .zip(load.transaction)
                .and_then(|(identity, duration)| Transactions::new(identity, &plan.client_id, duration)),
        })
    }

    fn is_idle(&self) -> bool {
        let is_open = self.transactions.as_ref().is_some_and(Transactions::is_open);
        self.writing.is_none() && self.in_flight.is_empty() && !is_open
    }

    fn lost(&self, reason: String) -> ClientError {
        let partitions: Vec<String> =
            self.targets.iter().map(|target| target.partition.to_string()).collect();
        tracing::debug!(partitions = partitions.join(","), "lost");
        ClientError::Lost { address: self.address.clone(), reason }
    }
}

fn body_bytes<'a>(bodies: &'a Bodies, own: Option<&'a Body>, own_bytes: &'a [u8], at: BodyAt) -> &'a [u8] {
    match at {
        BodyAt::OwnBytes => own_bytes,
        BodyAt::Own { count } => own.map_or(&[], |body| body.plain(count)),
        BodyAt::Shared { turn, count } => {
            let body = bodies.get(turn);
            body.whole_compressed(count).unwrap_or_else(|| body.plain(count))
        }
    }
}

/// The error in an answer, if there is one.
fn read_answer(frame: &[u8], version: i16, expected: Option<i32>) -> Result<Option<String>> {
    let malformed = |reason: String| ClientError::Malformed { what: "Produce".into(), reason };
    let mut body = Bytes::copy_from_slice(frame);
    let header_version =
        <ProduceRequest as kafka_protocol::protocol::Request>::Response::header_version(version);
    let header = ResponseHeader::decode(&mut body, header_version).map_err(|e| malformed(e.to_string()))?;
    if Some(header.correlation_id) != expected {
        return Err(malformed(format!("correlation id {} was not expected", header.correlation_id)));
    }
    let response = decode::<ProduceRequest>(version, body)?;
    let mut partitions = response.responses.iter().flat_map(|topic| &topic.partition_responses);
    Ok(partitions.find_map(|partition| {
        let code = ErrorCode::try_from_code(partition.error_code)?;
        let text = partition.error_message.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        Some(format!("partition {}: {}{text}", partition.index, code_name(code)))
    }))
}
