//! What a caller keeps of its requests.

use std::path::PathBuf;

use super::*;
use crate::coordinator::Place;

#[test]
fn a_caller_knows_so_many_requests_that_no_reply_has_spoken_of() {
    let client = Arc::new(Client::new(Place::Path(PathBuf::from("/none"))));
    let peer = "spiffe://a.example/service/server".parse().unwrap();
    let caller =
        Signing::new(&client, [7; 32], "g", (&peer, &Pins::default()), false).call("/a.B/C");
    let said = |number| caller.said((Way::Request, number), (false, [0; 32]), 0);
    let mut state = lock(&caller.state);
    let one = {
        drop(state);
        said(0)
    };
    state = lock(&caller.state);
    let mut all = vec![Requests::default()];
    for _ in 0..KEPT + 10 {
        state.sent(&one);
        all.push(all[all.len() - 1].and(&one));
    }
    assert!(state.before.len() == KEPT, "{}", state.before.len());
    assert!(state.answered(9).is_err(), "it is forgotten");
    for count in [10, 11, 500, 500, KEPT as u64] {
        assert_eq!(state.answered(count).unwrap(), all[count as usize], "{count}");
    }
    assert!(state.answered(499).is_err(), "a later reply has spoken of more");
    let last = all.len() - 1;
    assert_eq!(state.answered(last as u64).unwrap(), all[last]);
    assert!(state.answered(last as u64 + 1).is_err());
    assert!(state.before.is_empty());
}
