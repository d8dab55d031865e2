//! `kuring trace`.

use std::io;

use clap::Args;

use super::interrupt_flag;
use super::output::Failure;
use crate::trace::{Address, Config, Filter, Route, Sink, start};

#[derive(Args)]
#[command(after_help = "Examples:
  kuring trace --listen 127.0.0.1:19092 --upstream 127.0.0.1:9092
  kuring trace --listen 127.0.0.1:19092 --upstream broker1:9092 --api Produce --api Fetch --topic events
  kuring trace --listen 127.0.0.1:1901 --upstream b1:9092 --listen 127.0.0.1:1902 --upstream b2:9092

Clients connect to the listener instead of the broker. Each request and each response is printed as one line of JSON;
a response has latency_us, from the request's last byte to its own. What cannot be decoded goes through unchanged and
its line says so. The addresses of brokers in responses are replaced by the listeners', so that clients stay: a cluster
of several brokers needs a --listen for each, and each --upstream must be the address that its broker advertises, or
resolve to the same. Who reads the lines slowly slows the clients down. Connections must be plain text: what TLS hides,
hides it from here too.
Exit codes: 0 interrupted, or the reader of standard output went away; 1 failed; 2 wrong usage.")]
pub struct TraceArguments {
    /// Where clients connect; port 0 takes a free one. Repeat it with --upstream for each broker
    #[arg(short, long, value_name = "HOST:PORT", required = true)]
    listen: Vec<Address>,
    /// The broker that the listener stands for
    #[arg(short, long, value_name = "HOST:PORT", required = true)]
    upstream: Vec<Address>,
    /// Print only this API, by name or key; may be repeated
    #[arg(short, long, value_name = "API")]
    api: Vec<String>,
    /// Print only what this client id asks; may be repeated
    #[arg(short, long, value_name = "CLIENT_ID")]
    client: Vec<String>,
    /// Print only what names this topic; may be repeated
    #[arg(short, long, value_name = "TOPIC")]
    topic: Vec<String>,
    /// Print keys, values and headers of records, not only what they sum up to
    #[arg(short, long)]
    records: bool,
    /// A longer frame ends its connection
    #[arg(long, value_name = "BYTES", default_value_t = 128 << 20)]
    frame_bytes_max: usize,
    /// The body of a longer message is printed without the rest of its arrays
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    line_bytes_max: usize,
}

pub fn run(arguments: TraceArguments) -> Result<(), Failure> {
    let interrupt = interrupt_flag()?;
    if arguments.listen.len() != arguments.upstream.len() {
        let (listeners, brokers) = (arguments.listen.len(), arguments.upstream.len());
        return Err(Failure::Told(format!(
            "{listeners} --listen for {brokers} --upstream: each needs the other"
        )));
    }
    let filter = Filter::new(&arguments.api, &arguments.client, &arguments.topic)
        .map_err(|error| Failure::Told(error.to_string()))?;
    let routes = arguments.listen.into_iter().zip(arguments.upstream);
    let routes: Vec<Route> = routes.map(|(listen, upstream)| Route { listen, upstream }).collect();
    let upstreams: Vec<Address> = routes.iter().map(|route| route.upstream.clone()).collect();
    let config = Config {
        routes,
        filter,
        records: arguments.records,
        frame_bytes_max: arguments.frame_bytes_max,
        line_bytes_max: arguments.line_bytes_max,
    };
    let listening = start(config, Sink::new(io::stdout()))
        .map_err(|error| Failure::Told(format!("cannot listen: {error}")))?;
    for (address, upstream) in listening.addresses().iter().zip(upstreams) {
        eprintln!("kuring trace: listening on {address} for {upstream}");
    }
    listening.wait(&interrupt);
    Ok(())
}
