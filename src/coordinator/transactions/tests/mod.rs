//! Tests of the transaction coordinator through its interface, over a log in memory.

mod bounds;
mod flow;
mod harness;
mod simulation;
mod table;
