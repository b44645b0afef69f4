//! Who may see and change how others call, and at which socket.
//!
//! Where there is an operators' socket, operators' calls are taken there alone. Operators that have connected
//! elsewhere are told of it; it makes nobody an operator.

use std::path::PathBuf;

use partywall_abi::control::SessionMessage;
use partywall_abi::version::Capabilities;

use super::{Conn, Socket, State};

impl State {
    /// From here on operators' calls are taken from those alone who connect to this socket.
    pub fn separate_operators(&mut self, path: PathBuf) {
        self.operators = Some(path);
    }

    /// Tells an operator where its calls are taken, if that is not here.
    pub(super) fn tell_of_operators(&mut self, conn: Conn) {
        let c = &self.connections[&conn];
        let takes = c.spoken.capabilities.contains(Capabilities::OPERATORS)
            && c.came_by != Socket::Operators;
        let path = self.operators.as_ref().and_then(|path| path.to_str()).map(String::from);
        if let Some(path) = path
            && takes
            && c.standing.facts.is_operator(self.operator_uid)
        {
            self.send(conn, SessionMessage::Operators { path, uid: self.operator_uid });
        }
    }

    /// Whether the connection's user may see and change how others call, and may say so here; refuses all
    /// others.
    pub(super) fn is_operator(&mut self, conn: Conn, request: u32, what: &'static str) -> bool {
        let (c, operator) = (&self.connections[&conn], self.operator_uid);
        let (facts, at_operators) = (&c.standing.facts, c.came_by == Socket::Operators);
        let mut may = facts.is_operator(operator);
        if may
            && !at_operators
            && let Some(path) = &self.operators
        {
            may = false;
            let path = path.display();
            let text = format!(
                "whoever may {what} does so at the operators' socket {path} alone; remedy: ask there \
                 (`--socket {path}`), outside of containers"
            );
            self.deny(conn, request, what, text);
        } else if !may {
            let who = match (&facts.started_as, &facts.contained) {
                (Some(name), _) => format!("you are service `{name}`"),
                (None, _) if facts.descends => {
                    "you are a process that the coordinator started".into()
                }
                (None, Some(how)) if [0, operator].contains(&facts.uid) => format!(
                    "your process is taken for one of a container: {how}; remedy: do it outside of \
                     containers, in the coordinator's namespaces"
                ),
                (None, _) => format!("you are user {}", facts.uid),
            };
            let text = format!("only root and user {operator} may {what}; {who}");
            self.deny(conn, request, what, text);
        }
        may
    }
}
