//! The HTTP end: hyper on a current-thread runtime, on a plain thread of its own. Few connections, small heads,
//! short times: whoever is slow or sends nonsense costs one of [`CONNECTIONS_MAX`] places for a while.
//!
//! Never here: anything of a shard but the asking ends of their desks.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{Shared, exposition};
use crate::base::PROCESS;

/// Open connections; another one is closed at once.
const CONNECTIONS_MAX: usize = 32;
/// Answers that are made at the same time; the others wait.
const ANSWERS_AT_ONCE_MAX: usize = 2;
/// Bytes of a request's head; hyper takes no less.
const HEAD_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// For the first request's head to come: a silent connection takes a place from those who ask for `/health`.
const FIRST_HEAD_WAIT_MAX: Duration = Duration::from_secs(10);
/// For the head of the next one of a connection that is kept.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(75);
/// For a connection in all; then it ends after the answer it is at...
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);
/// ...or this much later in spite of it.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(10);
/// Wait after an accept that failed for want of descriptors.
const BACK_OFF: Duration = Duration::from_millis(500);

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let answers = Arc::new(Semaphore::new(ANSWERS_AT_ONCE_MAX));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection to the admin listener cannot be accepted");
                tokio::time::sleep(BACK_OFF).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            PROCESS.admin_connections_refused.increment();
            tracing::warn!(%peer, limit = CONNECTIONS_MAX, "admin connection refused: too many are open");
            continue;
        };
        let (shared, answers) = (shared.clone(), answers.clone());
        tokio::task::spawn_local(async move {
            serve_connection(stream, peer, shared, answers).await;
            drop(place);
        });
    }
}

async fn serve_connection(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>, answers: Arc<Semaphore>) {
    let has_asked = Rc::new(Cell::new(false));
    let asks = has_asked.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        asks.set(true);
        let (shared, answers) = (shared.clone(), answers.clone());
        async move {
            // The semaphore is never closed.
            let _turn = answers.acquire().await;
            Ok::<_, Infallible>(answer(&shared, &request).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut first = tokio::time::timeout(FIRST_HEAD_WAIT_MAX, connection.as_mut()).await;
    if first.is_err() {
        if !has_asked.get() {
            tracing::debug!(%peer, "admin connection closed: it asks nothing");
            return;
        }
        first = tokio::time::timeout(CONNECTION_AGE_MAX, connection.as_mut()).await;
    }
    let ended = match first {
        Ok(ended) => ended,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_ANSWER_MAX, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "admin connection ended");
    }
}

async fn answer(shared: &Shared, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET and HEAD only\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => respond(StatusCode::OK, exposition::CONTENT_TYPE, shared.metrics().await),
        "/health" => {
            let health = shared.health().await;
            judged(health.healthy, &health)
        }
        "/ready" => {
            let readiness = shared.readiness().await;
            judged(readiness.ready, &readiness)
        }
        "/" => respond(StatusCode::OK, TEXT, "/metrics\n/health\n/ready\n".to_owned()),
        _ => respond(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /health and /ready\n".to_owned()),
    }
}

fn judged(is_good: bool, body: &impl serde::Serialize) -> Response<Full<Bytes>> {
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match serde_json::to_string(body) {
        Ok(text) => respond(status, JSON, text + "\n"),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
