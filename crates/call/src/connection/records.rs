//! What control records mean.

use partywall_abi::frame::{self, Limits};
use partywall_abi::limits;

use super::{Connection, Drain};
use crate::error::{Error, Rule};
use crate::event::Event;

impl<T: Default> Connection<T> {
    pub(super) fn on_reset<'a>(
        &mut self,
        number: u32,
        payload: &'a [u8],
    ) -> Result<Event<'a>, Error> {
        let (code, text) = frame::decode_reset(payload)?;
        if number == 0 {
            return Err(Rule::WrongStream(number).into());
        }
        let Some(key) = self.find(number) else { return Ok(Event::Nothing) };
        self.close(key);
        Ok(Event::Reset { key, code, text })
    }

    pub(super) fn on_window<'a>(
        &mut self,
        number: u32,
        payload: &[u8],
    ) -> Result<Event<'a>, Error> {
        let credit = frame::decode_window(payload)?;
        if number == 0 {
            self.credit.add(credit)?;
            return Ok(Event::LinkCredit);
        }
        let Some(key) = self.find(number) else { return Ok(Event::Nothing) };
        self.stream(key).send.add(credit)?;
        Ok(Event::StreamCredit(key))
    }

    pub(super) fn on_parcels<'a>(
        &mut self,
        number: u32,
        payload: &[u8],
    ) -> Result<Event<'a>, Error> {
        let more = frame::decode_window(payload)?;
        if !self.tells_parcels {
            return Err(Rule::NotAgreed.into());
        }
        if number != 0 {
            return Err(Rule::WrongStream(number).into());
        }
        let sum = self.parcels_out.checked_add(more).filter(|sum| *sum <= limits::UNREAD_PARCELS);
        self.parcels_out = sum.ok_or(Rule::OverCredit)?;
        self.parcels_most_out = self.parcels_most_out.max(self.parcels_out);
        // A head to which something is attached may wait for it.
        Ok(Event::LinkCredit)
    }

    pub(super) fn on_room<'a>(&mut self, number: u32, payload: &[u8]) -> Result<Event<'a>, Error> {
        let until = frame::decode_room(payload)?;
        if !self.tells_room {
            return Err(Rule::NotAgreed.into());
        }
        if number == 0 {
            return Err(Rule::WrongStream(number).into());
        }
        let Some(key) = self.find(number) else { return Ok(Event::Nothing) };
        self.stream(key).send.room(until)?;
        Ok(Event::StreamCredit(key))
    }

    pub(super) fn on_limits<'a>(
        &mut self,
        number: u32,
        payload: &[u8],
    ) -> Result<Event<'a>, Error> {
        let said = Limits::decode(payload)?;
        if !self.caller {
            return Err(Rule::WrongSide.into());
        }
        if number != 0 {
            return Err(Rule::WrongStream(number).into());
        }
        if std::mem::replace(&mut self.limited, true) {
            return Err(Rule::SecondLimits.into());
        }
        self.places = said.streams as usize;
        self.credit.widen(said.window);
        Ok(Event::Limits)
    }

    pub(super) fn on_method<'a>(
        &mut self,
        number: u32,
        payload: &'a [u8],
    ) -> Result<Event<'a>, Error> {
        let path = frame::decode_method(payload)?;
        if self.caller {
            return Err(Rule::WrongSide.into());
        }
        if !self.tells_methods {
            return Err(Rule::NotAgreed.into());
        }
        let next = u32::from(self.methods);
        match self.next_method(path) {
            Some(_) if number == next => Ok(Event::Method { path }),
            _ => Err(Rule::MethodNumber(number).into()),
        }
    }

    pub(super) fn on_drain<'a>(&mut self, number: u32) -> Result<Event<'a>, Error> {
        if number != 0 {
            return Err(Rule::WrongStream(number).into());
        }
        if !self.caller {
            if self.drain == Drain::No {
                return Err(Rule::DrainNotAsked.into());
            }
            self.drain = Drain::Acknowledged;
            return Ok(Event::Drained);
        }
        if self.drain == Drain::No {
            self.drain = Drain::Refusing;
            self.acknowledge();
        }
        Ok(Event::Draining)
    }
}
