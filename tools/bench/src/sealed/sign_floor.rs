//! What signed messages cannot cost less than: a signature over a request and one over a reply, and the
//! verification of both.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _,
    ParsedPublicKey,
};

use super::on_one_core;
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// The library's signatures alone.
pub const SIGN_FLOOR: Contender = Contender::new(
    Kind::Floor,
    "sign-floor",
    "ECDSA over P-256 with SHA-256 (AWS-LC): request and reply are each signed and verified, in one thread",
    || on_one_core(None),
    call,
);

/// One end's key.
struct End {
    pair: EcdsaKeyPair,
    public: ParsedPublicKey,
    random: SystemRandom,
}

impl End {
    fn new() -> Result<Self> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_| "no key")?;
        let public = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, pair.public_key().as_ref());
        Ok(Self { pair, public: public.map_err(|_| "no public key")?, random: SystemRandom::new() })
    }

    /// Signs a message, and verifies that.
    fn pass(&self, message: &[u8]) -> Result<()> {
        let signature = self.pair.sign(&self.random, message).map_err(|_| "not signed")?;
        let fits = self.public.verify_sig(message, signature.as_ref());
        fits.map_err(|_| "not verified".into())
    }
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let mut meter = seat.meter()?;
    let mut request = vec![0; meter.size()];
    let [caller, service] = [End::new()?, End::new()?];
    loop {
        let seq = meter.fill(&mut request);
        let begun = meter.now();
        caller.pass(&request)?;
        service.pass(&request)?;
        let ended = meter.now();
        meter.check(seq, &request)?;
        if !meter.lap(begun, ended) {
            return Ok(meter.figures());
        }
    }
}
