//! What fires later: a hierarchical timing wheel and, on it, the purgatory of operations that wait for
//! something or for their time to run out. Each shard has its own; one timer of the executor drives it.
//!
//! Never here: IO, a clock. `now` comes in.

mod purgatory;
mod wheel;

pub use self::purgatory::{Full, Purgatory, WaitKey};
pub use self::wheel::{TimerKey, Wheel};
