#![allow(unsafe_code, reason = "wasmtime trusts what it deserializes")]
//! `wasmtime`: WebAssembly modules behind the runtime's ring, by wasmtime with pooled instances and epochs.
//!
//! | mode | what a call does |
//! |---|---|
//! | warm | a store, an instance of a module that is loaded, its function, and the end of the store |
//! | cold | the module from its compiled bytes first, and its end after the answer |
//!
//! The function gets its stamp from the host, by the same clock as all others, and returns its number. That
//! is a constant of its code: the bytes of one compiled module are patched for each function, so that all
//! have code of their own. An epoch is 10 ms long, and a call may have a hundred of them; a thread counts.

use std::time::Duration;

use partywall_abi::function::Submission;
use wasmtime::{
    Config, Engine, Instance, InstanceAllocationStrategy, InstancePre, Linker, Module,
    PoolingAllocationConfig, Store,
};

use super::ring::Place;
use crate::error::Result;
use crate::sys::clock::Stamps;

/// The number of function 0; its lower half is 0.
const NUMBER: u64 = 0x5a17_1f0d << 32;
const EPOCH: Duration = Duration::from_millis(10);
/// Epochs that a call may have.
const EPOCHS: u64 = 100;

/// A number as WebAssembly has it (LEB128, signed).
fn leb(number: u64) -> Vec<u8> {
    let mut left = number as i64;
    let mut bytes = Vec::new();
    loop {
        let low = (left & 0x7f) as u8;
        left >>= 7;
        let is_last = (left == 0 && low & 0x40 == 0) || (left == -1 && low & 0x40 != 0);
        bytes.push(if is_last { low } else { low | 0x80 });
        if is_last {
            return bytes;
        }
    }
}

fn section(id: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).ok().filter(|length| *length < 128);
    [&[id, length.expect("a short section")], payload].concat()
}

/// The module: `(import "h" "t" (func (result i64)))`, and `f` of type `() -> (i64, i64)`.
fn module(has_memory: bool) -> Vec<u8> {
    // i32.const 0, i64.const 1, i64.store: a page of the memory is written.
    let touch: &[u8] = if has_memory { &[0x41, 0, 0x42, 1, 0x37, 3, 0] } else { &[] };
    let body = [&[0], touch, &[0x42], &leb(NUMBER), &[0x10, 0, 0x0b]].concat();
    let code = [&[1, body.len() as u8], &body[..]].concat();
    let mut all = b"\0asm\x01\0\0\0".to_vec();
    all.extend(section(1, &[2, 0x60, 0, 1, 0x7e, 0x60, 0, 2, 0x7e, 0x7e]));
    all.extend(section(2, &[1, 1, b'h', 1, b't', 0, 0]));
    all.extend(section(3, &[1, 1]));
    if has_memory {
        all.extend(section(5, &[1, 0, 1]));
    }
    all.extend(section(7, &[1, 1, b'f', 0, 1]));
    all.extend(section(10, &code));
    if has_memory {
        all.extend(section(11, &[1, 0, 0x41, 8, 0x0b, 4, b'd', b'a', b't', b'a']));
    }
    all
}

fn engine() -> Result<Engine> {
    let mut config = Config::new();
    config.epoch_interruption(true);
    let pool = PoolingAllocationConfig::default();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Ok(Engine::new(&config)?)
}

/// The compiled module, whose number is to be patched.
pub fn compiled(has_memory: bool) -> Result<Vec<u8>> {
    Ok(engine()?.precompile_module(&module(has_memory))?)
}

/// Makes functions of the compiled module.
struct Modules {
    engine: Engine,
    linker: Linker<()>,
    bytes: Vec<u8>,
    /// Where the number is in the bytes.
    at: usize,
}

impl Modules {
    fn new(bytes: Vec<u8>, stamps: Stamps) -> Result<Self> {
        let number = NUMBER.to_le_bytes();
        let mut found = bytes.windows(8).enumerate().filter(|(_, window)| **window == number);
        let at = found.next().ok_or("the compiled module has no number")?.0;
        if found.next().is_some() {
            return Err("the compiled module has its number twice".into());
        }
        drop(found);
        let engine = engine()?;
        let mut linker = Linker::new(&engine);
        linker.func_wrap("h", "t", move || stamps.now() as i64)?;
        Ok(Self { engine, linker, bytes, at })
    }

    fn load(&mut self, which: u64) -> Result<InstancePre<()>> {
        self.bytes[self.at..self.at + 8].copy_from_slice(&(NUMBER | which).to_le_bytes());
        // SAFETY: the bytes are what this program's engine has compiled, but for one constant.
        let module = unsafe { Module::deserialize(&self.engine, &self.bytes)? };
        Ok(self.linker.instantiate_pre(&module)?)
    }

    fn call(&self, function: &InstancePre<()>) -> Result<[u64; 2]> {
        let mut store = Store::new(&self.engine, ());
        store.set_epoch_deadline(EPOCHS);
        let instance: Instance = function.instantiate(&mut store)?;
        let entry = instance.get_typed_func::<(), (i64, i64)>(&mut store, "f")?;
        let (number, stamp) = entry.call(&mut store, ())?;
        Ok([number as u64 ^ NUMBER, stamp as u64])
    }
}

/// The worker; it comes back only to say why it ends. Its arguments are the compiled module's file, the
/// number of functions to load (0: each when it is called), and the clock.
pub fn main(arguments: &[String]) -> String {
    match run(arguments) {
        Ok(()) => "wasmtime's worker has ended".into(),
        Err(why) => format!("wasmtime's worker cannot go on: {why}"),
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let [file, count, stamps] = arguments else { return Err("three arguments".into()) };
    let place = Place::open()?;
    let mut modules = Modules::new(std::fs::read(file)?, serde_json::from_str(stamps)?)?;
    let engine = modules.engine.clone();
    std::thread::Builder::new().name("epochs".into()).spawn(move || {
        loop {
            std::thread::sleep(EPOCH);
            engine.increment_epoch();
        }
    })?;
    let count: u64 = count.parse()?;
    let loaded = (0..count).map(|which| modules.load(which)).collect::<Result<Vec<_>>>()?;
    let mut worker = Worker { modules, loaded, last: None };
    place.serve(&mut worker, Worker::answer, |worker| worker.last = None)
}

struct Worker {
    modules: Modules,
    loaded: Vec<InstancePre<()>>,
    /// The module of a cold call, which ends when its answer has been given.
    last: Option<InstancePre<()>>,
}

impl Worker {
    fn answer(&mut self, submission: &Submission) -> Result<[u64; 2]> {
        if let Some(function) = self.loaded.get(submission.entry as usize) {
            return self.modules.call(function);
        }
        let function = self.modules.load(submission.entry)?;
        let said = self.modules.call(&function)?;
        self.last = Some(function);
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_their_own_numbers_and_stamps() {
        for has_memory in [false, true] {
            let bytes = compiled(has_memory).expect("a module");
            let stamps = Stamps::measure();
            let mut modules = Modules::new(bytes, stamps).expect("a number");
            for which in [0, 1, 4999] {
                let function = modules.load(which).expect("a module");
                let before = stamps.now();
                let [number, stamp] = modules.call(&function).expect("an answer");
                assert_eq!(number, which);
                assert!((before..=stamps.now()).contains(&stamp));
            }
        }
    }

    #[test]
    fn numbers_are_written_as_the_format_says() {
        assert_eq!(leb(2), [2]);
        assert_eq!(leb(127), [0xff, 0]);
        assert_eq!(leb(-123_456_i64 as u64), [0xc0, 0xbb, 0x78]);
    }
}
