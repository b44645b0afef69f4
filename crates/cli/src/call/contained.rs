//! Work of prost-reflect on types that a server has told: it panics on some of them.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is an error, of which no hook tells.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// The result of work that changes nothing which is used after a panic.
///
/// # Errors
/// The text of a panic, and who is to blame.
pub(super) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                tell(info);
            }
        }));
    });
    let outer = CONTAINED.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    done.map_err(|panic| {
        let why = text(&*panic);
        format!("the server has types that cannot be worked with ({why}); use --proto FILE")
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_is_an_error_that_blames_the_server() {
        let failed = contained(|| [0][std::hint::black_box(1)]).unwrap_err();
        assert!(failed.contains("the server has types"), "{failed}");
        assert!(failed.contains("index out of bounds"), "{failed}");
        assert_eq!(contained(|| 7), Ok(7));
        assert!(!CONTAINED.get());
    }
}
