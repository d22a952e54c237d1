//! The console over a made-up API.

mod golden;
mod hostile;
mod made_up;
mod pages;
mod people;
mod requests;
