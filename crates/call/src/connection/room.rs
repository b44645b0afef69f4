//! Memory that is kept for long messages, and what the peer is told of it.

use super::Connection;
use crate::control::Control;
use crate::event::Key;

impl<T: Default> Connection<T> {
    /// The program keeps memory for a message of a call: so many bytes, from what it takes next on.
    pub fn keep_room(&mut self, key: Key, bytes: u64) {
        self.stream(key).receive.keep_room(bytes);
        if self.waiting > 0 {
            self.tell_room(key);
        }
    }

    /// A call begins to wait for memory. While one does, those that wait may use up the link's window,
    /// so the peer is told of all room that others have: their messages need no window then.
    pub fn begin_to_wait(&mut self) {
        self.waiting += 1;
        if self.waiting == 1 {
            let all: Vec<_> = self.calls().collect();
            all.into_iter().for_each(|key| self.tell_room(key));
        }
    }

    /// A call has waited for memory.
    pub fn end_to_wait(&mut self) {
        self.waiting -= 1;
    }

    fn tell_room(&mut self, key: Key) {
        if !self.tells_room {
            return;
        }
        let stream = self.stream(key);
        if stream.open
            && let Some(until) = stream.receive.room_to_tell()
        {
            self.push(Control::Room(key.number, until));
        }
    }
}
