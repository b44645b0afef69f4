use super::*;
use crate::state::list::{LIST_WAIT, ROWS};

/// All that a connection with room for everything is sent.
fn told(s: &mut State, conn: Conn) -> (Vec<LinkRow>, usize) {
    let (mut rows, mut batches) = (Vec::new(), 0);
    while s.is_due(conn) {
        s.room(conn);
        batches += 1;
        let effects = s.take_effects();
        assert!(effects.len() <= ROWS + 1);
        for e in effects {
            match e {
                Effect::Send { message: Message::List(ListMessage::Row { row, .. }), .. } => {
                    rows.push(*row)
                }
                Effect::Send { message: Message::List(ListMessage::Listed { .. }), .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    (rows, batches)
}

#[test]
fn a_list_asks_the_servers_and_does_not_wait_for_ever() {
    let mut s = state();
    let (server, web, operator) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 9));
    register(&mut s, server);
    let (link, _) = link(&mut s, web);
    assert_eq!(
        refused(&ask(&mut s, web, Message::List(ListMessage::List { request: 3 }))).0,
        PERMISSION_DENIED
    );
    let e = ask(&mut s, operator, Message::List(ListMessage::List { request: 3 }));
    assert!(
        matches!(&e[..], [Effect::Send { to, message: Message::List(ListMessage::Query { .. }) }] if *to == server)
    );
    let stats = counted(5);
    assert!(
        ask(&mut s, server, Message::List(ListMessage::Counted { request: 1, link, stats }))
            .is_empty()
    );
    assert!(
        ask(
            &mut s,
            web,
            Message::List(ListMessage::Counted { request: 1, link, stats: LinkStats::default() })
        )
        .is_empty()
    );
    s.timeout(Instant::now());
    assert_eq!(told(&mut s, operator).1, 0, "too early");
    s.timeout(Instant::now() + LIST_WAIT);
    let (rows, _) = told(&mut s, operator);
    assert_eq!((rows.len(), rows[0].stats.calls, rows[0].open), (1, 5, true));
}

#[test]
fn long_list_is_sent_whole_in_batches() {
    let mut s = state();
    let (server, operator) = (open(&mut s, 1), open(&mut s, 9));
    register(&mut s, server);
    for uid in [2, 3] {
        let caller = open(&mut s, uid);
        for _ in 0..1024 {
            link(&mut s, caller);
        }
    }
    ask(&mut s, operator, Message::List(ListMessage::List { request: 3 }));
    ask(&mut s, server, Message::List(ListMessage::CountedAll { request: 1 }));
    let (rows, batches) = told(&mut s, operator);
    let numbers: Vec<u64> = rows.iter().map(|r| r.link).collect();
    assert_eq!(numbers, (1..=2048).collect::<Vec<_>>());
    assert_eq!(batches, 2048 / ROWS);
}
