//! Kuring's own limits on what clients may take: memory, time, sizes. `docs/LIMITS.md` says what happens at each
//! of them. Those with Kafka's names are in [`super::server`].

use super::p;
use crate::config::define::{Definition, Importance, Kind, Valid};
use Importance::{Low, Medium};
use Kind::{Int, Long};
use Valid::{AtLeast, Between};

/// All of them.
pub(super) static LIMITS: &[Definition] = &[
    p(
        "kuring.batch.records.max",
        Int,
        Some("4194304"),
        AtLeast(1),
        Low,
        "The most records in one batch that a client writes; more are refused with INVALID_RECORD.",
    ),
    p(
        "kuring.connection.first.request.ms",
        Long,
        Some("30000"),
        AtLeast(-1),
        Low,
        "A new connection whose first request is not there after so long is closed; -1 never.",
    ),
    p(
        "kuring.connection.request.ms",
        Long,
        Some("60000"),
        AtLeast(-1),
        Low,
        "A connection that has begun a request and moved less than kuring.connection.rate.min of it for so long is \
         closed; -1 never.",
    ),
    p(
        "kuring.connection.response.ms",
        Long,
        Some("300000"),
        AtLeast(-1),
        Low,
        "A connection that takes less than kuring.connection.rate.min of its answer for so long is closed; -1 \
         never. A classic consumer reads nothing while its records are processed, for max.poll.interval.ms at most.",
    ),
    p(
        "kuring.connection.rate.min",
        Int,
        Some("1024"),
        AtLeast(1),
        Low,
        "Bytes per second below which a peer in the middle of a request or an answer counts as slow.",
    ),
    p(
        "kuring.connection.requests.max",
        Int,
        Some("8"),
        Between(1, 1000),
        Low,
        "Produce requests that are taken from one connection before its oldest is answered; other requests are \
         served one at a time.",
    ),
    p(
        "kuring.decompression.bytes.max",
        Int,
        Some("268435456"),
        AtLeast(1 << 20),
        Low,
        "The most bytes that one batch may decompress to; more is refused with INVALID_RECORD.",
    ),
    p(
        "kuring.decompression.ratio.max",
        Int,
        Some("256"),
        AtLeast(1),
        Low,
        "How many times its size a batch that decompresses to more than 16 MiB may decompress to; more is refused \
         with INVALID_RECORD.",
    ),
    p(
        "kuring.memory.connection.bytes",
        Long,
        Some("33554432"),
        AtLeast(1),
        Low,
        "How many bytes of requests in service one connection has before it is not read until the oldest is \
         answered; a single larger one is served.",
    ),
    p(
        "kuring.memory.serve.bytes",
        Long,
        Some("67108864"),
        AtLeast(1 << 20),
        Medium,
        "How many bytes of answers that their peers have not taken, and of decoded requests, a shard holds before \
         it serves no more requests until some are gone.",
    ),
    p(
        "kuring.memory.stall.ms",
        Long,
        Some("1000"),
        AtLeast(1),
        Low,
        "While a shard has no memory left for others, a connection that holds some and moves less than 32 KiB in \
         so long is closed.",
    ),
    p(
        "kuring.memory.receive.bytes",
        Long,
        Some("134217728"),
        AtLeast(4 << 20),
        Medium,
        "How many bytes of received requests a shard holds before it stops reading.",
    ),
    p(
        "kuring.groups.bytes.max",
        Long,
        Some("268435456"),
        AtLeast(1 << 20),
        Medium,
        "How many bytes of metadata and assignments the members of all groups may have the coordinator hold; a \
         quarter of it for one group.",
    ),
    p(
        "kuring.transactions.bytes.max",
        Long,
        Some("268435456"),
        AtLeast(1 << 20),
        Medium,
        "How many bytes transactional ids and the partitions of their transactions may have the coordinator hold: \
         about 550 for an id.",
    ),
];
