//! Attacks of hostile processes on services, callers and the coordinator, over the public routes.
//!
//! A test is the hostile process: it speaks the protocols by hand ([`Hand`], and the testkit's
//! `Conversation`). Its victims are processes of their own that use the library as it is ([`Victim`]):
//! `at-coordinator`, `at-service` and `at-caller`. A [`Town`] has them. Each test says what its victim says,
//! to the letter, and whom it blames: in the status of the call, in the victim's log, and in the
//! coordinator's audit log. The victim serves somebody else right after, and holds no more than before.
//!
//! # Rows
//!
//! | row | attack | tests | what comes of it |
//! | --- | --- | --- | --- |
//! | 21 | lengths, offsets and counts out of range, or that wrap | `row_21_numbers_out_of_range_end_the_link`, `row_21_a_caller_ends_the_link_likewise`, `row_21_the_same_bytes_with_right_numbers_are_answered`; of parcels those of row 25 | the link ends, the peer is blamed. A place in a ring is computed and never told, so none can be crooked; that of bytes in a parcel may be any |
//! | 22 | memory that changes under the reader | `row_22_a_request_that_changes_is_copied_once`, `row_22_a_native_request_that_changes_is_copied_once`, `row_22_a_length_that_changes_is_right_or_refused`, `row_22_a_header_that_disagrees_opens_no_link` | one copy counts, whichever it is: it is answered, or the link ends with blame. What an outbox says of its own sizes is compared, and nobody goes by it |
//! | 23 | cursors that jump, go back or wrap; stamps of other records | `row_23_a_consumer_that_jumps_or_goes_back_ends_the_link`, `row_23_stamps_out_of_turn_are_no_records` | a cursor of what was taken ends the link with blame; a stamp out of turn is no record, and nothing happens. Positions have 64 bits; that a stamp comes again after 2^32 records is in the layout's own tests |
//! | 24 | memory that is cut, punched, or not sealed | `row_24_a_callers_outbox_that_can_be_cut_opens_no_link`, `row_24_a_services_outbox_that_can_be_cut_opens_no_link`, `row_24_an_open_links_memory_cannot_be_taken_away`; of parcels those of row 25 | no link, and the coordinator blames who says that it was ready; of an open link the kernel refuses it |
//! | 25 | descriptors that are no memory, holes, sizes without bytes | `row_25_what_is_no_parcel_ends_the_link_of_a_service`, `.._of_a_native_service`, `.._of_a_caller`, `row_25_a_long_parcel_ends_its_call_a_crooked_one_is_read`, `row_25_descriptors_cross_nowhere_else` | the link ends with blame; what is longer than its receiver takes ends its call. Elsewhere the kernel refuses descriptors to their sender (before Linux 6.16 the link, or the connection, ends). FUSE is not tried |
//! | 25, of attachments | memory and files attached to calls that are not what they are said to be: without a seal, with a hole, short, a program, a socket that closes slowly, address space without pages; owned parcels written meanwhile, and generations that are none; leases twice, late, without a grant, changed and punched while they are read; counts and kinds that are wrong; deaths between packet and frame, and before they are taken | `row_25_what_is_not_as_said_ends_its_call_at_a_service`, `row_25_what_is_not_as_said_ends_a_native_services_call`, `row_25_what_is_not_as_said_is_told_to_a_caller`, `row_25_memory_without_pages_takes_no_address_space`, `row_25_an_owner_that_writes_meanwhile_is_told_to_the_reader`, `row_25_a_generation_that_is_none_is_a_change`, `row_25_a_lease_of_an_old_generation_is_refused`, `row_25_a_lease_that_changes_is_other_bytes_and_no_more`, `row_25_a_broken_rule_of_attachments_ends_the_link`, `row_25_attachments_that_nobody_is_to_send_end_the_link`, `row_25_wrong_counts_of_attachments_end_the_link_of_a_caller`, `row_25_a_sender_that_dies_leaves_nothing_of_it`, `row_25_a_receiver_that_dies_keeps_nothing_of_it`, `row_25_memory_that_a_link_keeps_is_bounded`, `row_25_attachments_without_descriptors_left_end_the_link`, `row_25_a_caller_without_descriptors_left_is_told`; at random moments `row_26_attachments_of_the_killed_are_nobodys` | what is not as it is said to be is its call's error, and the link goes on; a count, a kind or a grant that is broken ends the link with blame; a victim without descriptors left ends it and blames nobody. An owner that writes is told to its reader; a lease that changes is other bytes. Nothing of what was attached is left |
//! | 26 | death at each labelled step | `row_26_no_call_is_lost_or_doubled_when_a_service_dies`, `row_26_no_call_is_doubled_when_a_caller_dies` (feature `failpoints`); the time by `callers_get_an_answer_from_a_server_killed_at_each_step`, `a_client_killed_at_each_step_leaves_the_server_as_it_was` and their native forms | the survivor hears of it within 100 ms, and goes on within a second; each call is made at most once, and once if it was answered. Nobody is blamed |
//! | 27 | numbers of calls, credits, methods, packets and owned parcels twice, late, or of others | `row_27_each_broken_rule_of_calls_ends_the_link_of_a_service`, `.._of_a_caller`, `row_27_packets_twice_late_or_of_others_end_the_link`, `row_27_owned_parcels_twice_late_or_of_others_end_the_link` | the link ends with blame |
//! | 28 | wakes without an end, for nothing, or never | `row_28_a_storm_of_bells_ends_the_link_of_a_service`, `.._of_a_caller`, `row_28_a_storm_of_futex_wakes_ends_the_link_of_a_caller`, `row_28_others_are_served_in_a_storm`, `row_28_a_peer_that_never_wakes_delays_no_deadline`, `row_28_wakes_for_nothing_change_nothing` | more than two wakes for each sleep, and 64, end the link with blame; fewer cost their victim a look each. A deadline passes in time, without a busy wait |
//! | 29 | messages of another type, overlong and cut varints, groups in groups, texts that are none | `row_29_a_service_refuses_what_is_no_message`, `row_29_a_native_service_refuses_what_is_no_message`, `row_29_a_caller_refuses_what_is_no_message`; `row_29_a_caller_opens_no_link_by_a_setup_that_is_none` | the call ends, as tonic's does, by either stubs; the link goes on. What protobuf allows (overlong varints, a bool of 2, unknown fields) is read as protobuf says. gRPC has no numbers of types |
//! | 30 | processes that nobody knows, names that are none or are another's, a number used again | `row_30_a_process_that_nobody_knows_is_denied`, `row_30_a_name_that_is_none_ends_the_connection`, `row_30_a_dead_owners_name_is_nobodys`, `row_30_an_end_raises_nothing_that_protects_its_link`, `row_30_a_number_used_again_is_not_the_process_that_had_it`; `an_impostor_that_answers_for_another_process_is_refused` | PERMISSION_DENIED, or the end of the connection; the audit log names the process |
//! | 31 | a hundred thousand registrations, slow readers, pieces of packets, floods of descriptors | `row_31_a_hundred_thousand_registrations_are_sixteen`, `row_31_a_slow_reader_is_not_read_and_loses_nothing`, `row_31_pieces_of_packets_end_their_connection`, `row_31_floods_of_descriptors_leave_none`; by a thousand connections of another user the tests of `attacks` in the step `root` | RESOURCE_EXHAUSTED at the quota, the end of the connection, and no descriptor left; others are served in time |
//! | 32 | the coordinator killed and started again at each step | `row_32_a_caller_at_each_step_has_nothing_of_it_afterwards`, `row_32_a_service_at_each_step_has_nothing_of_it_afterwards`, `row_32_a_link_of_the_old_policy_ends_under_the_new_one`; at random moments under load `a_killed_coordinator_is_found_again_and_links_go_on` | links go on, names are served again, begun links are given up; old numbers have no effect. A link that the new policy does not allow ends 10 s after the start at the latest |
//! | 34 | policies with mistakes, or that others could change | `row_34_a_policy_with_a_mistake_is_refused_by_its_line`, `row_34_a_policy_that_others_could_change_is_refused` | no start, no socket; the message has file, line and remedy. The only cycles are those of symbolic links |
//! | 35 | a clock that is set | `row_35_no_decision_asks_for_the_time_of_day`, `row_35_who_asks_for_the_time_of_day_is_ended` | no effect: no decision reads a clock that can be set, once the policy is read. The clock itself is not set ([`clock`]) |
//!
//! Row 33 is about D-Bus, which there is none of. Rows 1 to 20 are those of `partywall-domain`.
#![forbid(unsafe_code)]

mod by_hand;
pub mod clock;
mod taken;
mod town;

use std::io::IsTerminal;

use partywall_interop::proto::{Payload, SimpleRequest, SimpleResponse};

pub use by_hand::{Answer, Hand, call_head, good_answer, message, name, register, silently};
pub use taken::taken;
pub use town::{Programs, Town, Victim};

/// The method that callers call.
pub const UNARY: &str = "/grpc.testing.TestService/UnaryCall";

/// The method that gives leases back, with one more in each word, and copies of owned parcels.
pub const BACK: &str = "/a.T/Back";

/// A request whose answer repeats `size` bytes that `seed` determines.
pub fn request(seed: u64, size: usize) -> SimpleRequest {
    let body: Vec<u8> = (0..size).map(|i| (seed as usize + i * 7) as u8).collect();
    let payload = Some(Payload { body: body.into(), ..Payload::default() });
    SimpleRequest { response_size: size as i32, payload, ..SimpleRequest::default() }
}

/// Whether the answer repeats the request's payload.
pub fn is_answer(request: &SimpleRequest, reply: &SimpleResponse) -> bool {
    let body = |p: &Option<Payload>| p.as_ref().map(|p| p.body.clone()).unwrap_or_default();
    body(&request.payload) == body(&reply.payload)
}

/// A victim's log, on its standard error, in the form that its tests look for.
pub fn log_to_stderr() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).without_time();
    log.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
}
