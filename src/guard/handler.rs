//! What happens when a guard page is touched: the handler of SIGSEGV. It is set when the first block is put
//! into a slot, so that those that a program sets when it starts are called after it.

use crate::guard::fault;
use crate::os::fault as signal;
use crate::sync::AtomicBool;
use crate::sync::Ordering::SeqCst;

/// Whether it has been set, and not taken back.
static SET: AtomicBool = AtomicBool::new(false);

/// Sets the handler, once.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn install() {
    if !SET.load(SeqCst) && !SET.swap(true, SeqCst) {
        signal::handle(fault::touched);
    }
}

/// Takes the handler back.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn uninstall() {
    if SET.swap(false, SeqCst) {
        signal::unhandle();
    }
}
