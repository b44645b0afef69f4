//! Which images are loaded, and which one goes when another needs its room.
//!
//! An image is loaded when its function is called. It stays as long as a call of it runs or waits, and then
//! until room is needed: [`super::Workers::resident`] bytes are the most. What goes is what was not called
//! for the longest time, by second chance: a hand goes round all that are loaded, takes the first that was
//! not called since it last came by, and costs a call nothing but to say that it was here.

use std::io;

use super::function::Id;
use super::group::ALL;
use super::{Dispatcher, Function};
use crate::store::Loaded;

/// The images that are loaded.
#[derive(Debug, Default)]
pub(super) struct Residents {
    functions: Vec<Id>,
    hand: usize,
    bytes: u64,
}

impl<T> Dispatcher<T> {
    /// Loads a function's image before it is called, and starts a process of its group if it has none.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::StorageFull`] when all that is loaded is in use and leaves no room, or
    /// there are as many processes as there may be.
    pub fn preload(&mut self, id: Id) -> io::Result<Loaded> {
        if !self.knows(id) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let group = self.functions[id.at()].group();
        if !self.seats.groups.get(group).has_process() {
            if self.seats.is_full() {
                let most = self.workers.processes;
                let why = format!(
                    "there are {most} worker processes, which is the most: `processes` has room for no \
                     other group"
                );
                return Err(io::Error::new(io::ErrorKind::StorageFull, why));
            }
            let seat = self.seats.emptiest();
            self.start(seat, group, self.looked_ns)?;
        }
        self.load(id)?;
        Ok(self.functions[id.at()].loaded().expect("it was just loaded"))
    }

    /// The images that are loaded, and the bytes that they have.
    pub fn resident(&self) -> (usize, u64) {
        (self.residents.functions.len(), self.residents.bytes)
    }

    /// Whether a function's image is loaded.
    pub fn is_loaded(&self, id: Id) -> bool {
        self.knows(id) && self.functions[id.at()].entry().is_some()
    }

    #[inline]
    pub(super) fn load(&mut self, id: Id) -> io::Result<u64> {
        let function = &mut self.functions[id.at()];
        function.is_recent = true;
        match function.entry() {
            Some(entry) => Ok(entry),
            None => Ok(self.bring(id)?.entry),
        }
    }

    #[cold]
    fn bring(&mut self, id: Id) -> io::Result<Loaded> {
        let packed = self.functions[id.at()].more.image;
        let image = self.archive.read(packed)?;
        let wanted = u64::from(packed.resident);
        loop {
            let is_room = self.residents.bytes + wanted <= self.workers.resident;
            let group = self.functions[id.at()].group();
            let store = self.seats.groups.store(group);
            let loaded = if is_room { store.put(&image) } else { Ok(None) };
            // Where only plots are missing, others' images have none to give.
            let of = is_room.then_some(group);
            match loaded {
                Ok(Some(loaded)) => {
                    let function = &mut self.functions[id.at()];
                    function.more.counts.cold += 1;
                    function.load(Some(loaded));
                    self.residents.functions.push(id);
                    self.residents.bytes += loaded.bytes;
                    return Ok(loaded);
                }
                Ok(None) if self.unload_one(of)? => {}
                Ok(None) => return Err(io::ErrorKind::StorageFull.into()),
                Err(why) if why.kind() == io::ErrorKind::InvalidData => return Err(why),
                // No memory: what is not in use has some.
                Err(why) if !self.unload_one(None)? => return Err(why),
                Err(_) => {}
            }
        }
    }

    /// Unloads what was not called for the longest time, of a group or of all; false if all of it is in use.
    fn unload_one(&mut self, of: Option<usize>) -> io::Result<bool> {
        let Residents { functions, hand, .. } = &mut self.residents;
        for _ in 0..2 * functions.len() {
            *hand = if *hand < functions.len() { *hand } else { 0 };
            let function = &mut self.functions[functions[*hand].at()];
            let is_one = of.is_none_or(|group| function.group() == group) && function.users == 0;
            if is_one && !std::mem::take(&mut function.is_recent) {
                let at = *hand;
                self.unload(at)?;
                return Ok(true);
            }
            *hand += 1;
        }
        Ok(false)
    }

    /// Unloads one of those that are loaded.
    fn unload(&mut self, at: usize) -> io::Result<()> {
        let id = self.residents.functions.swap_remove(at);
        let Some(loaded) = self.functions[id.at()].load(None) else { return Ok(()) };
        self.residents.bytes -= loaded.bytes;
        let group = self.functions[id.at()].group();
        self.seats.groups.store(group).take(&loaded)
    }

    /// A group that is not that of all has no process any more: its images go.
    pub(super) fn forget_images(&mut self, group: usize) {
        if group == ALL {
            return;
        }
        let Self { functions, residents, .. } = self;
        residents.functions.retain(|id| {
            let function = &mut functions[id.at()];
            let loaded = if function.group() == group { function.load(None) } else { None };
            residents.bytes -= loaded.map_or(0, |loaded| loaded.bytes);
            loaded.is_none()
        });
        self.seats.groups.get_mut(group).store = None;
    }

    /// Removes a function: no call of it is taken any more, and it goes with its last one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&mut self, id: Id) -> io::Result<()> {
        if !self.knows(id) {
            return Ok(());
        }
        let Function { is_removed, open, .. } = &mut self.functions[id.at()];
        *is_removed = true;
        let is_over = *open == 0;
        if is_over { self.drop_function(id) } else { Ok(()) }
    }

    /// A removed function has no calls any more.
    pub(super) fn drop_function(&mut self, id: Id) -> io::Result<()> {
        if self.functions[id.at()].entry().is_some() {
            let mut all = self.residents.functions.iter();
            let at =
                all.position(|resident| *resident == id).expect("what is loaded is in the list");
            self.unload(at)?;
        }
        let function = self.functions.remove(id.at());
        self.seats.groups.leave(function.group());
        self.archive.take(function.more.image);
        Ok(())
    }

    /// A call has no use for its function's image any more, for now.
    pub(super) fn release(&mut self, call: usize) {
        let call = &mut self.calls[call];
        if std::mem::take(&mut call.holds) {
            self.functions[call.function.at()].users -= 1;
        }
    }
}
