//! A counted budget with those who wait for a part of it: memory, credits. Lives on one shard. Small wishes stand in a
//! line of their own, so that none waits behind a large one; while a large one waits they leave it a quarter. In each
//! line it is first come, first served; a part that comes home goes to the first at once, and one who has left costs
//! nothing, so that thousands may wait.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::Counter;

/// So many units, and who waits for some.
#[derive(Debug)]
pub struct Budget {
    max: usize,
    in_use: Cell<usize>,
    /// By [`Size`].
    lines: [RefCell<VecDeque<Rc<Waiter>>>; SIZES.len()],
    on_pressure: RefCell<Option<Waker>>,
    waits: Counter,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Size {
    /// They want nothing but that the budget is not used up.
    None = 0,
    Large = 1,
    Small = 2,
}

/// In the order in which they are served.
const SIZES: [Size; 3] = [Size::None, Size::Large, Size::Small];

/// Wishes up to this part of the budget are small.
const SMALL_PART: usize = 64;

#[derive(Debug)]
struct Waiter {
    wants: usize,
    state: Cell<State>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    /// The part is his already.
    Granted,
    /// He has left.
    Gone,
}

impl Budget {
    pub fn new(max: usize) -> Self {
        Self {
            max,
            in_use: Cell::new(0),
            lines: Default::default(),
            on_pressure: RefCell::default(),
            waits: Counter::default(),
        }
    }

    pub fn max(&self) -> usize {
        self.max
    }

    pub fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// Up to here a wish is small.
    pub fn small_max(&self) -> usize {
        self.max / SMALL_PART
    }

    /// How often somebody had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// Takes a part that cannot wait, whatever is left.
    pub fn take_now(&self, units: usize) {
        self.in_use.set(self.in_use.get() + units);
    }

    /// Waits for its turn and until the part is within the budget; one above all of it gets it when nothing else is
    /// in use. To be given back.
    pub fn take(&self, units: usize) -> Take<'_> {
        Take { budget: self, units, waiter: None }
    }

    pub fn give_back(&self, units: usize) {
        self.in_use.set(self.in_use.get() - units);
        self.call_next();
    }

    /// Ready when somebody waits. For one task.
    pub fn poll_pressure(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.somebody_waits() {
            return Poll::Ready(());
        }
        *self.on_pressure.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }

    pub fn somebody_waits(&self) -> bool {
        SIZES.into_iter().any(|size| self.waits_for(size))
    }

    /// What must come home for all who wait to get theirs.
    pub fn missing(&self) -> usize {
        let lines = self.lines.each_ref().map(|line| line.borrow());
        let waiting = lines.iter().flat_map(|line| line.iter());
        let waiting = waiting.filter(|waiter| waiter.state.get() == State::Waiting);
        let mut wishes = waiting.map(|waiter| waiter.wants.min(self.max)).peekable();
        if wishes.peek().is_none() {
            return 0;
        }
        wishes.fold(self.in_use.get(), usize::saturating_add).saturating_sub(self.max)
    }

    fn size(&self, units: usize) -> Size {
        match units {
            0 => Size::None,
            _ if units <= self.small_max() => Size::Small,
            _ => Size::Large,
        }
    }

    fn waits_for(&self, size: Size) -> bool {
        let mut line = self.lines[size as usize].borrow_mut();
        while line.front().is_some_and(|first| first.state.get() == State::Gone) {
            line.pop_front();
        }
        !line.is_empty()
    }

    fn fits(&self, units: usize) -> bool {
        let is_second = self.size(units) == Size::Small && self.waits_for(Size::Large);
        let left_to_others = if is_second { self.max / 4 } else { 0 };
        self.in_use.get() == 0 || self.in_use.get().saturating_add(units) <= self.max - left_to_others
    }

    fn call_next(&self) {
        for size in SIZES {
            while self.waits_for(size) {
                let first = self.lines[size as usize].borrow().front().cloned();
                let Some(first) = first.filter(|first| self.fits(first.wants)) else { break };
                self.lines[size as usize].borrow_mut().pop_front();
                self.take_now(first.wants);
                first.state.set(State::Granted);
                if let Some(waker) = first.waker.take() {
                    waker.wake();
                }
            }
        }
    }
}

/// Waits for a part of a [`Budget`]. Dropped before it is ready, it takes none.
#[derive(Debug)]
#[must_use = "nothing is taken before it is awaited"]
pub struct Take<'a> {
    budget: &'a Budget,
    units: usize,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Take<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let budget = self.budget;
        if let Some(waiter) = &self.waiter {
            if waiter.state.get() == State::Granted {
                self.waiter = None;
                return Poll::Ready(());
            }
            *waiter.waker.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        let size = budget.size(self.units);
        if !budget.waits_for(size) && budget.fits(self.units) {
            budget.take_now(self.units);
            return Poll::Ready(());
        }
        let waker = RefCell::new(Some(context.waker().clone()));
        let waiter = Rc::new(Waiter { wants: self.units, state: Cell::new(State::Waiting), waker });
        budget.lines[size as usize].borrow_mut().push_back(waiter.clone());
        budget.waits.increment();
        self.waiter = Some(waiter);
        if let Some(waker) = budget.on_pressure.take() {
            waker.wake();
        }
        Poll::Pending
    }
}

impl Drop for Take<'_> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        match waiter.state.replace(State::Gone) {
            State::Granted => self.budget.give_back(self.units),
            // Who stands behind may want less.
            State::Waiting => self.budget.call_next(),
            State::Gone => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn those_who_wait_are_served_in_their_order() {
        let budget = Budget::new(2);
        assert!(budget.take(2).now_or_never().is_some());
        let (mut first, mut second) = (budget.take(1), budget.take(1));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        budget.give_back(1);
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut first).now_or_never().is_some());
        budget.give_back(1);
        assert!((&mut second).now_or_never().is_some());
        assert_eq!((budget.in_use(), budget.waits()), (2, 2));
    }

    #[test]
    fn what_is_missing_is_what_those_in_the_line_want_beyond_what_is_left() {
        let budget = Budget::new(10);
        budget.take_now(12);
        assert_eq!(budget.missing(), 0);
        let (mut first, mut second) = (budget.take(3), budget.take(100));
        assert!((&mut first).now_or_never().is_none());
        assert_eq!(budget.missing(), 5);
        assert!((&mut second).now_or_never().is_none());
        assert_eq!(budget.missing(), 15);
        drop(second);
        assert_eq!(budget.missing(), 5);
        drop(first);
        assert_eq!(budget.missing(), 0);
    }

    #[test]
    fn nobody_overtakes_the_line() {
        let budget = Budget::new(10);
        budget.take_now(8);
        let mut large = budget.take(5);
        assert!((&mut large).now_or_never().is_none());
        let mut small = budget.take(1);
        assert!((&mut small).now_or_never().is_none());
        drop(large);
        assert!((&mut small).now_or_never().is_some(), "who leaves lets the next one in");
    }

    #[test]
    fn small_wishes_pass_a_large_one_and_leave_it_a_quarter() {
        let budget = Budget::new(6400);
        budget.take_now(4600);
        let mut large = budget.take(2000);
        assert!((&mut large).now_or_never().is_none());
        assert!(budget.take(100).now_or_never().is_some());
        assert!(budget.take(100).now_or_never().is_some());
        let mut third = budget.take(100);
        assert!((&mut third).now_or_never().is_none(), "the rest is for who waits");
        assert!(budget.take(0).now_or_never().is_some());
        budget.give_back(400);
        assert!((&mut large).now_or_never().is_some());
        assert!((&mut third).now_or_never().is_none());
        budget.give_back(100);
        assert!((&mut third).now_or_never().is_some());
    }

    #[test]
    fn a_part_that_was_granted_and_not_fetched_comes_home() {
        let budget = Budget::new(1);
        budget.take_now(1);
        let (mut first, mut second) = (budget.take(1), budget.take(1));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        budget.give_back(1);
        drop(first);
        assert!((&mut second).now_or_never().is_some());
        budget.give_back(1);
        assert_eq!(budget.in_use(), 0);
    }

    #[test]
    fn a_part_above_the_whole_budget_is_given_when_nothing_is_in_use() {
        let budget = Budget::new(10);
        budget.take_now(1);
        let mut all = budget.take(100);
        assert!((&mut all).now_or_never().is_none());
        budget.give_back(1);
        assert!((&mut all).now_or_never().is_some());
    }
}
