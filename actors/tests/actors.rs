//! All actors on fakes and paused time: whole lives of plugins one by one, and worlds drawn from seeds.

mod simulation;
mod supervision;
