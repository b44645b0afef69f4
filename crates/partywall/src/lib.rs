//! partywall
