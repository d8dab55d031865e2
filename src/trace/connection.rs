//! One client's connection: two threads, one for what it asks and one for what it is answered. Both know which
//! requests are open.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::decode::{Context, Decoded, Replace, acks, decode};
use super::json::Json;
use super::listen::Shared;
use super::schema::{Direction, Message};
use super::{Address, REQUESTS_OPEN_MAX};
use crate::base::clock::{Monotonic, monotonic, wall};
use crate::wire::ApiKey;
use crate::wire::frame::{PREFIX_LEN, REQUEST_LEN_MIN};
use crate::wire::read::{DecodeError, Reader};

const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long answers may still come when the client asks no more.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(30);
/// The version of SaslHandshake after which tokens come without a header (KIP-152).
const HANDSHAKE_BEFORE_TOKENS: i16 = 0;
/// Memory is taken for a frame as its bytes come, not as its length says: so much at once.
const RESERVE_MAX: usize = 64 << 10;
/// UNSUPPORTED_VERSION: with it ApiVersions is answered in version 0, whatever was asked (KIP-511).
const UNSUPPORTED_VERSION: [u8; 2] = [0, 35];

/// Serves one accepted client until either side closes.
pub(super) fn serve(
    shared: &Arc<Shared>,
    number: u64,
    client: TcpStream,
    upstream: &Address,
) -> io::Result<()> {
    let broker = connect(upstream)?;
    client.set_nodelay(true)?;
    broker.set_nodelay(true)?;
    let local = client.local_addr()?.ip();
    let open = Arc::new(Mutex::new(VecDeque::new()));
    let ends = Ends { client: client.try_clone()?, broker: broker.try_clone()? };
    let (alive, ended) = channel();
    let answers = {
        let ends = Ends { client: client.try_clone()?, broker: broker.try_clone()? };
        let mut answers = Answers {
            shared: shared.clone(),
            number,
            local,
            open: open.clone(),
            from: BufReader::new(broker.try_clone()?),
            to: client.try_clone()?,
        };
        std::thread::Builder::new().name(format!("answers-{number}")).spawn(move || {
            // The client sees the end that the broker made, and whoever waits for either goes on.
            let _last: (Ends, Sender<()>) = (ends, alive);
            answers.run()
        })?
    };
    let from = BufReader::new(client);
    let mut requests = Requests { shared: shared.clone(), number, open, is_sasl: false, from, to: broker };
    let outcome = requests.run();
    if outcome.is_ok() {
        // What is under way is still answered.
        let _ = requests.to.shutdown(Shutdown::Write);
        let _ = ended.recv_timeout(LAST_ANSWERS_MAX);
    }
    drop(ends);
    let answered = answers.join().unwrap_or_else(|_| Err(io::Error::other("its answers' thread panicked")));
    outcome.and(answered)
}

/// Both sockets of a connection. When it is dropped, also in a panic, they are shut: no thread waits for either then.
struct Ends {
    client: TcpStream,
    broker: TcpStream,
}

impl Drop for Ends {
    fn drop(&mut self) {
        for end in [&self.client, &self.broker] {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn connect(upstream: &Address) -> io::Result<TcpStream> {
    let mut last = io::Error::other(format!("{upstream} resolves to nothing"));
    for address in upstream.resolve()? {
        match TcpStream::connect_timeout(&address, CONNECT_WAIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A request without its answer.
struct Open {
    head: Head,
    sent_at: Monotonic,
    /// Its line was printed; so will be its answer's.
    is_shown: bool,
    /// What its answer says of what it set is not shown.
    has_secrets: bool,
}

/// What the header of a request says.
#[derive(Clone)]
struct Head {
    key: i16,
    version: i16,
    correlation: i32,
    client_id: Option<Bytes>,
}

type Queue = Arc<Mutex<VecDeque<Open>>>;

struct Requests {
    shared: Arc<Shared>,
    number: u64,
    open: Queue,
    /// Frames are tokens of SASL, until one is a request.
    is_sasl: bool,
    from: BufReader<TcpStream>,
    to: TcpStream,
}

impl Requests {
    fn run(&mut self) -> io::Result<()> {
        while let Some(frame) = read_frame(&mut self.from, self.shared.config.frame_bytes_max)? {
            self.request(&Bytes::from(frame))?;
        }
        Ok(())
    }

    fn request(&mut self, frame: &Bytes) -> io::Result<()> {
        let Ok((head, body)) = self.split(frame) else { return self.pass(frame) };
        let shared = &self.shared;
        let message = shared.schemas.find(head.key, Direction::Request);
        let nothing = |_: &Address| None;
        let decoded = shared.decode(message, head.version, &body, &nothing, false);
        if self.is_sasl && !decoded.as_ref().is_ok_and(|decoded| decoded.left == 0) {
            return self.pass(frame);
        }
        self.is_sasl = head.key == ApiKey::SaslHandshake as i16
            && head.version == HANDSHAKE_BEFORE_TOKENS
            && decoded.is_ok();
        let (is_shown, acks) = shared.is_wanted(&head, message, &body, &decoded);
        if is_shown {
            let text = line(self.number, "request", &head, message, frame.len(), None, &decoded);
            shared.line(&text)?;
        }
        // Kafka answers all but a Produce that wants no acknowledgement.
        if head.key != ApiKey::Produce as i16 || acks != Some(0) {
            let mut open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if open.len() >= REQUESTS_OPEN_MAX {
                return Err(io::Error::other(format!("{REQUESTS_OPEN_MAX} requests wait for their answers")));
            }
            // What could not be read may have some.
            let has_secrets = decoded.map_or(true, |decoded| decoded.has_secrets);
            open.push_back(Open { head, sent_at: monotonic(), is_shown, has_secrets });
        }
        send(&mut self.to, frame, None)
    }

    /// What is no request that could be understood; nothing of it is shown.
    fn pass(&mut self, frame: &Bytes) -> io::Result<()> {
        self.shared.line(&garbled(self.number, "request", frame))?;
        send(&mut self.to, frame, None)
    }

    /// Header and body.
    fn split(&self, frame: &Bytes) -> Result<(Head, Bytes), DecodeError> {
        let mut reader = Reader::new(frame);
        let (key, version, correlation) = (reader.i16()?, reader.i16()?, reader.i32()?);
        // The client id keeps its legacy length in every version of the header.
        let client_id = reader.string_bytes(false)?;
        let message = self.shared.schemas.find(key, Direction::Request);
        reader.skip_tagged_fields(message.is_some_and(|message| version >= message.flexible))?;
        Ok((Head { key, version, correlation, client_id }, reader.rest()))
    }
}

struct Answers {
    shared: Arc<Shared>,
    number: u64,
    /// Where the client reached the proxy.
    local: IpAddr,
    open: Queue,
    from: BufReader<TcpStream>,
    to: TcpStream,
}

impl Answers {
    fn run(&mut self) -> io::Result<()> {
        while let Some(frame) = read_frame(&mut self.from, self.shared.config.frame_bytes_max)? {
            self.answer(&Bytes::from(frame))?;
        }
        Ok(())
    }

    fn answer(&mut self, frame: &Bytes) -> io::Result<()> {
        let now = monotonic();
        let Some(open) = self.find(frame) else {
            self.shared.line(&garbled(self.number, "response", frame))?;
            return send(&mut self.to, frame, None);
        };
        let shared = &self.shared;
        let head = &open.head;
        let message = shared.schemas.find(head.key, Direction::Response);
        let is_api_versions = head.key == ApiKey::ApiVersions as i16;
        let mut version = head.version;
        let mut reader = Reader::new(frame);
        let flexible = !is_api_versions && message.is_some_and(|message| version >= message.flexible);
        // `find` has read the correlation id.
        let header = reader.skip(size_of::<i32>()).and_then(|()| reader.skip_tagged_fields(flexible));
        let header_len = reader.position();
        let body = reader.rest();
        if is_api_versions && body.starts_with(&UNSUPPORTED_VERSION) {
            version = 0;
        }
        let replace = |address: &Address| shared.directory.replacement(address, self.local);
        let decoded = match header {
            Ok(()) => shared.decode(message, version, &body, &replace, open.has_secrets),
            Err(error) => Err(error.to_string()),
        };
        if open.is_shown || shared.is_wanted(head, message, &body, &decoded).0 {
            let latency = now.since(open.sent_at);
            let text = line(self.number, "response", head, message, frame.len(), Some(latency), &decoded);
            shared.line(&text)?;
        }
        match decoded.ok().and_then(|decoded| decoded.rewritten) {
            Some(rewritten) => send(&mut self.to, &frame.slice(..header_len), Some(&rewritten)),
            None => send(&mut self.to, frame, None),
        }
    }

    /// The request that is answered. A broker answers in order: what stands before it will not be answered any more.
    fn find(&self, frame: &Bytes) -> Option<Open> {
        let correlation = i32::from_be_bytes(*frame.first_chunk()?);
        let mut open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let place = open.iter().position(|open| open.head.correlation == correlation)?;
        open.drain(..place);
        open.pop_front()
    }
}

impl Shared {
    /// Or why not.
    fn decode(
        &self,
        message: Option<&Message>,
        version: i16,
        body: &Bytes,
        replace: Replace<'_>,
        hides_reasons: bool,
    ) -> Result<Decoded, String> {
        let message = message.ok_or("no API of this key is known")?;
        if !message.has(version) {
            return Err(format!("only versions {} to {} are known", message.min, message.max));
        }
        let context = Context { config: &self.config, names: &self.names, replace, hides_reasons };
        decode(message, version, body, context).map_err(|error| error.to_string())
    }

    /// Whether the filter lets it through, and the acknowledgements that it asks for.
    fn is_wanted(
        &self,
        head: &Head,
        message: Option<&Message>,
        body: &Bytes,
        decoded: &Result<Decoded, String>,
    ) -> (bool, Option<i16>) {
        let filter = &self.config.filter;
        let by_head = filter.wants_request(head.key, head.client_id.as_deref());
        match decoded {
            Ok(Decoded { mentions, .. }) => (by_head && filter.wants_body(mentions), mentions.acks),
            Err(_) => {
                let acks = message.and_then(|message| acks(message, head.version, body));
                (by_head && filter.wants_unknown(), acks)
            }
        }
    }
}

/// `None`: the peer closed between two frames.
fn read_frame(from: &mut impl Read, len_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut prefix = [0; PREFIX_LEN];
    let mut filled = 0;
    while filled < PREFIX_LEN {
        match from.read(&mut prefix[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let len = i32::from_be_bytes(prefix);
    let wanted = usize::try_from(len).ok().filter(|len| *len <= len_max);
    let wanted =
        wanted.ok_or_else(|| io::Error::other(format!("a frame of {len} bytes, {len_max} is the limit")))?;
    let mut frame = Vec::with_capacity(wanted.min(RESERVE_MAX));
    from.take(wanted as u64).read_to_end(&mut frame)?;
    if frame.len() < wanted { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Some(frame)) }
}

/// The frame `first` and, when it is there, `rest`, under one length.
fn send(to: &mut TcpStream, first: &[u8], rest: Option<&[u8]>) -> io::Result<()> {
    let rest = rest.unwrap_or_default();
    // A response grows by a few letters for each broker: far from what a length can say.
    let len = i32::try_from(first.len() + rest.len()).map_err(io::Error::other)?;
    to.write_all(&[&len.to_be_bytes()[..], first, rest].concat())
}

/// The line of one message.
fn line(
    number: u64,
    kind: &str,
    head: &Head,
    message: Option<&Message>,
    len: usize,
    latency: Option<Duration>,
    decoded: &Result<Decoded, String>,
) -> String {
    let mut json = start(number, kind, len);
    json.key("api");
    match message {
        Some(message) => json.string(message.name),
        None => json.null(),
    }
    for (name, value) in
        [("key", i32::from(head.key)), ("version", head.version.into()), ("correlation", head.correlation)]
    {
        json.key(name);
        json.plain(value);
    }
    json.key("client");
    // What is of no API may have no such header.
    json.nullable(head.client_id.as_deref().filter(|_| message.is_some()));
    if let Some(latency) = latency {
        json.key("latency_us");
        json.plain(latency.as_micros());
    }
    match decoded {
        Ok(decoded) => {
            if decoded.left > 0 {
                json.key("bytes_behind");
                json.plain(decoded.left);
            }
            json.key("body");
            json.raw(&decoded.json);
        }
        Err(reason) => {
            json.key("undecoded");
            json.string(reason);
        }
    }
    json.close('}');
    json.into_text()
}

/// The line of a frame that is none of Kafka's. Its bytes are not shown: tokens of old SASL have no header.
fn garbled(number: u64, kind: &str, frame: &Bytes) -> String {
    let mut json = start(number, kind, frame.len());
    json.key("undecoded");
    json.string(match frame.len() {
        ..REQUEST_LEN_MIN => "too short",
        _ => "no header of a request, or an answer to none",
    });
    json.close('}');
    json.into_text()
}

fn start(number: u64, kind: &str, len: usize) -> Json {
    let mut json = Json::new(usize::MAX);
    json.open('{');
    json.key("time_ms");
    json.plain(wall().0);
    json.key("connection");
    json.plain(number);
    json.key("kind");
    json.string(kind);
    json.key("bytes");
    json.plain(len);
    json
}
