//! How much memory the decoders of all installations may use for their windows.
//!
//! A decoder keeps the last bytes that it wrote, its window, and the header of an archive states
//! the size. The author of an archive can write 128 MiB there, and the checksum is known to be
//! right only at the end. So each installation takes a permit for what its archive asks for, from a
//! budget that all share, and gives it back when its decoder is dropped.
//!
//! ```text
//! unpack: header ─► Hold::grow ─ enough is free ─► goes on
//!                        └─ not ─► the download is given up, and its slot with it
//! retry:  WindowBudget::take, first come, first served ─► the download begins again
//! ```
//!
//! A content coding (`download::expand`) needs memory at the same time: [`Hold::code`] takes it from the
//! same budget, beside what the archive itself asks for.
//!
//! No installation waits for memory while it holds a connection or a download slot, and the wait
//! does not count as time of a download. An installation that holds memory and makes no progress
//! gives it back as soon as another one waits (`transfer` calls [`Hold::is_wanted`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::error::UnpackError;

/// Most bytes of one window. The largest that `zstd` makes without `--ultra` or `--long=28`, and
/// more than any preset of `xz` needs.
pub(super) const WINDOW_MAX: u64 = 128 << 20;

/// The budget of all windows together: the largest one, and one that a preset of `zstd` makes.
const BUDGET: u64 = WINDOW_MAX + (8 << 20);

/// Longest time for which a server may keep the agent waiting for the next [`STALLED_BYTES`] while
/// other installations wait for memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// The least number of bytes within [`PATIENCE`] that counts as progress of a download.
pub(super) const STALLED_BYTES: u64 = 64 << 10;

/// Permits are counted in these, because the semaphore counts no further than `u32`.
const UNIT: u64 = 1 << 10;

/// The memory that is shared.
#[derive(Debug)]
pub(super) struct WindowBudget {
    units: Arc<Semaphore>,
    /// All of them.
    total: u32,
    /// How many installations wait for memory.
    waiting: watch::Sender<usize>,
    /// How long an installation that holds memory may be without progress while others wait.
    pub(super) patience: Duration,
}

/// The memory that one installation holds. It is given back by [`Hold::release`], and when this is
/// dropped.
#[derive(Debug)]
pub(super) struct Hold {
    budget: Arc<WindowBudget>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    permit: Option<OwnedSemaphorePermit>,
    /// The largest window of the archive's frames so far, in units.
    window: u32,
    /// The same for its content coding.
    coding: u32,
    /// Most that both needed together so far.
    most: u32,
}

/// Counts an installation that waits.
struct Waiting<'a>(&'a watch::Sender<usize>);

// === impl WindowBudget ===

impl Default for WindowBudget {
    fn default() -> Self {
        Self::new(BUDGET, PATIENCE)
    }
}

impl WindowBudget {
    fn new(bytes: u64, patience: Duration) -> Self {
        let total = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        let units = Arc::new(Semaphore::new(usize::try_from(total).unwrap_or(usize::MAX)));
        Self { units, total, waiting: watch::Sender::new(0), patience }
    }

    /// The same with another patience.
    #[cfg(test)]
    pub(super) fn with_patience(patience: Duration) -> Self {
        Self::new(BUDGET, patience)
    }

    /// Waits for so many units, behind the installations that began to wait before; `wait` is
    /// called if it has to wait. Does not wait for 0 units.
    pub(super) async fn take(self: &Arc<Self>, units: u32, wait: impl FnOnce()) -> Hold {
        let mut held = Held { most: units, ..Held::default() };
        if units > 0 {
            let units = units.min(self.total);
            let at_once = Arc::clone(&self.units).try_acquire_many_owned(units);
            held.permit = match at_once {
                Ok(permit) => Some(permit),
                Err(_) => {
                    wait();
                    let _waiting = Waiting::begin(&self.waiting);
                    // It fails only when the semaphore is closed, and nobody closes it.
                    Arc::clone(&self.units).acquire_many_owned(units).await.ok()
                }
            };
        }
        Hold { budget: Arc::clone(self), held: Mutex::new(held) }
    }
}

// === impl Hold ===

impl Hold {
    /// Takes the memory for a window of so many bytes.
    ///
    /// # Errors
    /// The window is larger than any may be, or other installations use too much memory at the
    /// moment. The installation then has to begin again with [`WindowBudget::take`] of
    /// [`Self::most`]: it would have to keep its memory while it waits for more, and two
    /// installations that do so could wait for each other.
    pub(super) fn grow(&self, bytes: u64) -> Result<(), UnpackError> {
        if bytes > WINDOW_MAX {
            return Err(UnpackError::Window { wanted: bytes, limit: WINDOW_MAX });
        }
        let mut held = self.held();
        let (window, coding) = (held.window.max(in_units(bytes)), held.coding);
        self.secure(&mut held, window.saturating_add(coding), bytes)?;
        held.window = window;
        Ok(())
    }

    /// Takes the memory for undoing a content coding, beside that for the archive's own windows.
    ///
    /// # Errors
    /// As for [`Self::grow`].
    pub(super) fn code(&self, bytes: u64) -> Result<(), UnpackError> {
        if bytes > WINDOW_MAX {
            return Err(UnpackError::Window { wanted: bytes, limit: WINDOW_MAX });
        }
        let mut held = self.held();
        let (window, coding) = (held.window, held.coding.max(in_units(bytes)));
        self.secure(&mut held, window.saturating_add(coding), bytes)?;
        held.coding = coding;
        Ok(())
    }

    /// Takes what is missing of what both need, `wanted` units.
    fn secure(&self, held: &mut Held, wanted: u32, bytes: u64) -> Result<(), UnpackError> {
        if wanted > self.budget.total {
            let wanted = u64::from(wanted).saturating_mul(UNIT);
            return Err(UnpackError::Window { wanted, limit: WINDOW_MAX });
        }
        let has = held.permit.as_ref().map_or(0, units_of);
        held.most = held.most.max(wanted);
        let Some(missing) = wanted.checked_sub(has).filter(|missing| *missing > 0) else {
            return Ok(());
        };
        // It gives nothing while other installations wait: freed memory belongs to the first of
        // them.
        match Arc::clone(&self.budget.units).try_acquire_many_owned(missing) {
            Ok(more) => {
                match &mut held.permit {
                    Some(permit) => permit.merge(more),
                    none => *none = Some(more),
                }
                Ok(())
            }
            Err(_) => {
                // An installation that asks for more and more begins again once, not each time.
                if has > 0 {
                    held.most = held.most.max(in_units(WINDOW_MAX));
                }
                Err(UnpackError::WindowTaken { wanted: bytes })
            }
        }
    }

    /// Gives the memory back. Call it when the decoder is dropped.
    pub(super) fn release(&self) {
        let mut held = self.held();
        *held = Held { most: held.most, ..Held::default() };
    }

    /// The memory that the archive needs, as far as it is known, in units of the budget.
    pub(super) fn most(&self) -> u32 {
        self.held().most
    }

    /// How long it may be without progress while others wait.
    pub(super) fn patience(&self) -> Duration {
        self.budget.patience
    }

    /// Resolves when another installation waits for memory and this one holds some.
    pub(super) async fn is_wanted(&self) {
        if self.held().permit.is_some() {
            let mut waiting = self.budget.waiting.subscribe();
            // It fails only when the budget is gone, and this has it.
            if waiting.wait_for(|waiting| *waiting > 0).await.is_ok() {
                return;
            }
        }
        std::future::pending().await
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    fn begin(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Enough units for a window; even the smallest takes one.
fn in_units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT).max(1)).unwrap_or(u32::MAX)
}

fn units_of(permit: &OwnedSemaphorePermit) -> u32 {
    u32::try_from(permit.num_permits()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget() -> Arc<WindowBudget> {
        Arc::default()
    }

    async fn take(budget: &Arc<WindowBudget>, bytes: u64) -> Hold {
        budget.take(if bytes == 0 { 0 } else { in_units(bytes) }, || {}).await
    }

    fn is_taken(result: Result<(), UnpackError>) -> bool {
        matches!(result, Err(UnpackError::WindowTaken { .. }))
    }

    #[tokio::test]
    async fn the_largest_window_and_a_usual_one_fit_side_by_side_and_no_third() {
        let budget = budget();
        let [large, usual, third] = [take(&budget, 0), take(&budget, 0), take(&budget, 0)];
        let (large, usual, third) = (large.await, usual.await, third.await);
        large.grow(128 * MIB).expect("free");
        usual.grow(8 * MIB).expect("free");
        assert!(is_taken(third.grow(1)));
        // Only the largest window so far counts: a smaller one takes nothing and gives nothing
        // back.
        large.grow(MIB).expect("held");
        assert!(is_taken(third.grow(1)));
        large.release();
        third.grow(128 * MIB).expect("free again");
        drop(third);
        large.grow(128 * MIB).expect("free again");
    }

    #[tokio::test]
    async fn what_no_archive_may_use_is_refused_at_once_with_a_way_out() {
        let error = take(&budget(), 0).await.grow(128 * MIB + 1).expect_err("too large");
        let text = error.to_string();
        for part in ["134217729", "134217728", "--long", "pack"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(error.is_about_content());
    }

    #[tokio::test]
    async fn a_coding_and_the_archive_in_it_need_their_memory_together() {
        let budget = budget();
        let (one, two) = (take(&budget, 0).await, take(&budget, 0).await);
        one.code(8 * MIB).expect("free");
        one.grow(100 * MIB).expect("free");
        assert_eq!(one.most(), in_units(108 * MIB));
        assert!(is_taken(two.code(29 * MIB)));
        two.code(28 * MIB).expect("just enough");
        drop(two);
        // The largest window of an archive fits beside the one of a compressed transfer.
        one.grow(128 * MIB).expect("free");
        assert!(matches!(one.code(9 * MIB), Err(UnpackError::Window { .. })));
        assert!(matches!(one.code(129 * MIB), Err(UnpackError::Window { .. })));
        one.release();
        one.code(128 * MIB).expect("what was before does not count");
        drop(one);
        assert_eq!(take(&budget, 136 * MIB).await.most(), in_units(136 * MIB));
    }

    #[tokio::test]
    async fn those_who_wait_are_served_in_turn() {
        let budget = budget();
        let first = take(&budget, 128 * MIB).await;
        let (mut second, mut third) =
            (Box::pin(take(&budget, 100 * MIB)), Box::pin(take(&budget, 5 * MIB)));
        assert!(second.as_mut().now_or_never().is_none(), "there is not enough");
        assert!(third.as_mut().now_or_never().is_none(), "another waits since longer");
        let late = take(&budget, 0).await;
        assert!(is_taken(late.grow(MIB)), "others wait");
        drop(first);
        let _second = second.now_or_never().expect("its turn");
        let _third = third.now_or_never().expect("enough for it as well");
        late.grow(MIB).expect("nobody waits any more");
    }

    #[tokio::test]
    async fn one_that_cannot_grow_begins_again_with_all_that_any_may_need() {
        let budget = budget();
        let (one, two) = (take(&budget, 0).await, take(&budget, 0).await);
        one.grow(100 * MIB).expect("free");
        two.grow(20 * MIB).expect("free");
        assert!(is_taken(one.grow(120 * MIB)));
        assert!(is_taken(two.grow(100 * MIB)));
        assert_eq!([one.most(), two.most()], [in_units(WINDOW_MAX); 2]);
        let fresh = take(&budget, 0).await;
        assert!(is_taken(fresh.grow(30 * MIB)));
        assert_eq!(fresh.most(), in_units(30 * MIB), "its first header said what it needs");
    }

    #[tokio::test]
    async fn only_one_that_holds_something_is_wanted_and_only_while_others_wait() {
        let budget = budget();
        let (empty, holder) = (take(&budget, 0).await, take(&budget, 128 * MIB).await);
        assert!(holder.is_wanted().now_or_never().is_none());
        let mut waits = Box::pin(take(&budget, 128 * MIB));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(holder.is_wanted().now_or_never().is_some());
        assert!(empty.is_wanted().now_or_never().is_none());
        drop(waits);
        assert!(holder.is_wanted().now_or_never().is_none(), "it does not wait any more");
    }
}
