//! Asks every shard, each on its own, and waits for none longer than [`ANSWER_MAX`]: one that does not answer
//! is told of, not waited for.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashSet;
use futures::channel::oneshot;
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::desk::{ControlReport, Line, Question, ShardReport};
use crate::base::TopicName;
use crate::config::{BrokerConfig, MetricsOfLogs};
use crate::shard::WantedFigures;

/// How long all questions together may take.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// What there was to gather.
pub(super) struct Gathered {
    /// By shard; `None`: it did not answer in time.
    pub(super) shards: Vec<Option<ShardReport>>,
    pub(super) control: Option<ControlReport>,
}

/// Everything that `/metrics` tells.
pub(super) async fn figures(lines: &[Line], config: &BrokerConfig) -> Gathered {
    let deadline = Instant::now() + ANSWER_MAX;
    let lag = config.metrics_lag_max > 0;
    let control = control(lines, lag, deadline).await;
    let committed = control.iter().flat_map(|control| &control.committed);
    let topics: AHashSet<TopicName> =
        committed.map(|committed| TopicName::new(committed.topic.as_str())).collect();
    let wanted = WantedFigures { logs: config.metrics_of_logs, high_watermarks_of: Arc::new(topics) };
    Gathered { shards: ask_shards(lines, &wanted, deadline).await, control }
}

/// What `/ready` needs.
pub(super) async fn readiness(lines: &[Line]) -> Gathered {
    let deadline = Instant::now() + ANSWER_MAX;
    let control = control(lines, false, deadline).await;
    let wanted = WantedFigures { logs: MetricsOfLogs::Broker, high_watermarks_of: Arc::default() };
    Gathered { shards: ask_shards(lines, &wanted, deadline).await, control }
}

/// Which shards answer.
pub(super) async fn pings(lines: &[Line]) -> Vec<bool> {
    let deadline = Instant::now() + ANSWER_MAX;
    let answers: Vec<_> = lines.iter().map(|line| line.ask(Question::Ping)).collect();
    let answers = answers.into_iter().map(|answer| by(deadline, answer));
    join_all(answers).await.into_iter().map(|answer| answer.is_some()).collect()
}

async fn control(lines: &[Line], committed_offsets: bool, deadline: Instant) -> Option<ControlReport> {
    let line = lines.first()?;
    by(deadline, line.ask(|reply| Question::Control { committed_offsets, reply })).await
}

async fn ask_shards(lines: &[Line], wanted: &WantedFigures, deadline: Instant) -> Vec<Option<ShardReport>> {
    let answers: Vec<_> =
        lines.iter().map(|line| line.ask(|reply| Question::Figures(wanted.clone(), reply))).collect();
    join_all(answers.into_iter().map(|answer| by(deadline, answer))).await
}

async fn by<T>(deadline: Instant, answer: Option<oneshot::Receiver<T>>) -> Option<T> {
    timeout_at(deadline, answer?).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_does_not_answer_is_told_of_within_a_second_or_two() {
        let (line, desk) = super::super::desk();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let lines = vec![line];
        let ping = || {
            let started = std::time::Instant::now();
            (runtime.block_on(pings(&lines)), started.elapsed() < ANSWER_MAX * 3)
        };
        assert_eq!(ping(), (vec![false], true));
        // Its questions do not pile up: the ninth is not asked, and the answer is there at once.
        runtime.block_on(async { join_all((0..7).map(|_| pings(&lines))).await });
        let started = std::time::Instant::now();
        assert_eq!(runtime.block_on(pings(&lines)), [false]);
        assert!(started.elapsed() < ANSWER_MAX);
        drop(desk);
        assert_eq!(runtime.block_on(pings(&lines)), [false]);
    }
}
