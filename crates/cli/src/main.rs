//! cli
#[allow(dead_code)]
mod build;
#[allow(dead_code)]
mod compose;
fn main() {}
