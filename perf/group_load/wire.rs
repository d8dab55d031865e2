//! A connection that waits: requests and answers in order.

use std::io::{Error, Read as _, Result, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _, Request, StrBytes};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(180);

pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream })
    }

    pub fn call<R: Request>(&self, version: i16, request: &R) -> Result<R::Response> {
        self.send(&frame(version, request))?;
        self.receive::<R>(version)
    }

    pub fn send(&self, frame: &[u8]) -> Result<()> {
        (&self.stream).write_all(frame)
    }

    pub fn receive<R: Request>(&self, version: i16) -> Result<R::Response> {
        let mut frame = self.receive_frame()?;
        ResponseHeader::decode(&mut frame, R::Response::header_version(version)).map_err(Error::other)?;
        R::Response::decode(&mut frame, version).map_err(Error::other)
    }

    pub fn receive_frame(&self) -> Result<Bytes> {
        let mut length = [0; 4];
        (&self.stream).read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        (&self.stream).read_exact(&mut frame)?;
        Ok(frame.into())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A request with its length in front.
pub fn frame<R: Request>(version: i16, request: &R) -> Vec<u8> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_client_id(Some(StrBytes::from_static_str("group-load")));
    let mut message = BytesMut::new();
    let encoded = header
        .encode(&mut message, R::header_version(version))
        .and_then(|()| request.encode(&mut message, version));
    if let Err(error) = encoded {
        panic!("a request of this program: {error}");
    }
    let mut frame = Vec::with_capacity(4 + message.len());
    frame.put_u32(message.len() as u32);
    frame.put_slice(&message);
    frame
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
