//! Tests of the receive chunks: what is held when, who waits for the budget.

use std::future::poll_fn;
use std::task::Poll;

use futures::task::noop_waker;

use super::*;

const KIB: usize = 1024;

/// Puts `bytes` into the buffer as a receive would.
fn fill(buffer: &mut ReceiveBuffer, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        assert!(prepare(buffer), "the budget has room");
        let room = buffer.room();
        let part = room.len().min(bytes.len());
        room[..part].copy_from_slice(&bytes[..part]);
        buffer.advance(part);
        bytes = &bytes[part..];
    }
}

fn prepare(buffer: &mut ReceiveBuffer) -> bool {
    let waker = noop_waker();
    match buffer.poll_prepare(&mut Context::from_waker(&waker)) {
        Poll::Ready(prepared) => {
            prepared.unwrap();
            true
        }
        Poll::Pending => false,
    }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| ((index * 7 + seed) % 251) as u8).collect()
}

#[test]
fn idle_connection_holds_no_memory() {
    let pool = ChunkPool::new(1 << 20);
    let mut buffer = ReceiveBuffer::new(pool.clone());
    assert!(prepare(&mut buffer));
    assert_eq!(pool.in_use_bytes(), 32 * KIB);
    buffer.rest();
    assert_eq!(pool.in_use_bytes(), 0);

    fill(&mut buffer, b"the beginning of a frame");
    buffer.rest();
    assert_eq!(pool.in_use_bytes(), 0, "a little is put aside");
    assert_eq!(buffer.filled(), b"the beginning of a frame");
    fill(&mut buffer, b" and its end");
    assert_eq!(&buffer.take(36)[..], b"the beginning of a frame and its end");

    fill(&mut buffer, &pattern(5_000, 1));
    buffer.rest();
    assert_eq!(pool.in_use_bytes(), 32 * KIB, "more keeps its chunk");
    assert_eq!(buffer.filled(), pattern(5_000, 1));
}

#[test]
fn slices_keep_their_chunk_and_the_last_one_sends_it_home() {
    let pool = ChunkPool::new(1 << 20);
    let mut buffer = ReceiveBuffer::new(pool.clone());
    let data = pattern(20 * KIB, 3);
    fill(&mut buffer, &data);
    let first = buffer.take(8 * KIB);
    let second = buffer.take(10 * KIB);
    let small = buffer.take(2 * KIB);
    buffer.rest();
    assert_eq!(pool.in_use_bytes(), 32 * KIB);
    // Other bytes do not touch what was given out.
    fill(&mut buffer, &pattern(20 * KIB, 9));
    assert_eq!(first, data[..8 * KIB]);
    assert_eq!(second, data[8 * KIB..18 * KIB]);
    drop(first);
    std::thread::spawn(move || drop(second)).join().unwrap();
    assert_eq!(small, data[18 * KIB..]);
    assert_eq!(pool.in_use_bytes(), 32 * KIB, "the second chunk");
    assert_eq!(pool.idle_bytes(), 32 * KIB);
    drop(buffer);
    assert_eq!(pool.in_use_bytes(), 0);
}

#[test]
fn chunk_is_filled_from_its_beginning_again_when_its_slices_are_gone() {
    let pool = ChunkPool::new(32 * KIB);
    let mut buffer = ReceiveBuffer::new(pool.clone());
    for round in 0..10 {
        let data = pattern(20 * KIB, round);
        fill(&mut buffer, &data);
        assert_eq!(buffer.take(20 * KIB), data);
    }
    assert_eq!(pool.muted(), 0);
}

#[test]
fn long_frame_gets_a_chunk_that_holds_it_whole() {
    let pool = ChunkPool::new(64 << 20);
    let mut buffer = ReceiveBuffer::new(pool.clone());
    let frame = pattern(3_000_000, 5);
    fill(&mut buffer, &frame[..100]);
    buffer.reserve(frame.len());
    fill(&mut buffer, &frame[100..]);
    assert_eq!(buffer.filled().len(), frame.len());
    assert!(buffer.take(frame.len()) == frame);
    buffer.rest();
    assert_eq!(pool.in_use_bytes(), 0);
    assert!(pool.idle_bytes() < 3_000_000, "a chunk of an odd size is not kept");
}

#[test]
fn announced_length_alone_holds_little_memory() {
    let pool = ChunkPool::new(64 << 20);
    let mut buffer = ReceiveBuffer::new(pool.clone());
    let frame = pattern(50_000_000, 3);
    fill(&mut buffer, &frame[..4]);
    buffer.reserve(frame.len());
    assert!(prepare(&mut buffer));
    assert_eq!(pool.in_use_bytes(), 1 << 20);
    fill(&mut buffer, &frame[4..2_000_000]);
    assert!(pool.in_use_bytes() <= 4 << 20);
    fill(&mut buffer, &frame[2_000_000..]);
    assert!(buffer.take(frame.len()) == frame);
}

#[test]
fn connection_moves_to_the_chunks_that_its_receives_need() {
    let pool = ChunkPool::new(64 << 20);
    let mut buffer = ReceiveBuffer::new(pool.clone());
    for expected in [32, 256, 1024, 1024] {
        assert!(prepare(&mut buffer));
        assert_eq!(buffer.room().len(), expected * KIB);
        let all = buffer.room().len();
        buffer.advance(all);
        drop(buffer.take(all));
        buffer.rest();
    }
    for _ in 0..40 {
        fill(&mut buffer, b"small");
        buffer.skip(5);
        buffer.rest();
    }
    assert!(prepare(&mut buffer));
    assert_eq!(buffer.room().len(), 32 * KIB);
}

#[test]
fn budget_holds_newcomers_back_until_memory_comes_home() {
    let pool = ChunkPool::new(64 * KIB);
    let mut buffers: Vec<_> = (0..4).map(|_| ReceiveBuffer::new(pool.clone())).collect();
    assert!(prepare(&mut buffers[0]));
    assert!(prepare(&mut buffers[1]));
    assert!(!prepare(&mut buffers[2]));
    assert!(!prepare(&mut buffers[3]));
    assert_eq!(pool.muted(), 2);
    buffers[0].rest();
    assert!(!prepare(&mut buffers[3]), "the third is before it in the line");
    assert!(prepare(&mut buffers[2]));
    buffers[1].rest();
    assert!(prepare(&mut buffers[3]));
    assert_eq!(pool.in_use_bytes(), 64 * KIB);
}

#[test]
fn partial_frames_that_fill_the_budget_do_not_block_one_another() {
    let pool = ChunkPool::new(128 * KIB);
    let mut buffers: Vec<_> = (0..4).map(|_| ReceiveBuffer::new(pool.clone())).collect();
    for buffer in &mut buffers {
        fill(buffer, &pattern(10 * KIB, 0));
        buffer.reserve(200 * KIB);
    }
    assert!(!buffers.iter_mut().any(prepare), "the last to come calls the first");
    let mut left = buffers.len();
    while left > 0 {
        let before = left;
        for buffer in &mut buffers {
            if buffer.filled().len() == 10 * KIB && prepare(buffer) {
                fill(buffer, &pattern(190 * KIB, 0));
                drop(buffer.take(200 * KIB));
                buffer.rest();
                left -= 1;
            }
        }
        assert!(left < before, "somebody always gets on");
    }
    assert_eq!(pool.in_use_bytes(), 0);
}

#[test]
fn frame_beyond_the_budget_is_admitted_alone() {
    let pool = ChunkPool::new(64 * KIB);
    let mut buffer = ReceiveBuffer::new(pool.clone());
    buffer.reserve(1 << 20);
    assert!(prepare(&mut buffer));
    let mut other = ReceiveBuffer::new(pool.clone());
    assert!(!prepare(&mut other));
    drop(buffer);
    assert!(prepare(&mut other));
}

#[test]
fn one_that_gives_up_lets_the_next_in() {
    let pool = ChunkPool::new(32 * KIB);
    let mut first = ReceiveBuffer::new(pool.clone());
    let mut second = ReceiveBuffer::new(pool.clone());
    let mut third = ReceiveBuffer::new(pool.clone());
    assert!(prepare(&mut first));
    assert!(!prepare(&mut second));
    let woken = futures::task::noop_waker();
    let mut cx = Context::from_waker(&woken);
    let waits = std::pin::pin!(poll_fn(|cx| third.poll_prepare(cx)));
    assert!(waits.poll(&mut cx).is_pending());
    drop(first);
    // The second was called and does not come.
    drop(second);
    assert!(prepare(&mut third));
}

#[test]
fn long_frames_leave_a_part_of_the_budget_to_short_ones() {
    let pool = ChunkPool::new(4 << 20);
    let mut long: Vec<_> = (0..20).map(|_| ReceiveBuffer::new(pool.clone())).collect();
    for buffer in &mut long {
        fill(buffer, &pattern(100, 0));
        buffer.rest();
        buffer.reserve(1 << 20);
        let _ = prepare(buffer);
    }
    assert!(pool.in_use_bytes() <= 3 << 20);
    assert!(pool.wanted_bytes() > 0);
    let mut short = ReceiveBuffer::new(pool.clone());
    assert!(prepare(&mut short), "nobody of the long line is in its way");
    assert!(short.room().len() <= 1024, "it takes no more than can be put aside");
    fill(&mut short, b"a request");
    drop(short.take(9));
    short.rest();
    assert_eq!(short.state().held_bytes(), 0);
}

#[test]
fn when_memory_is_tight_a_long_frame_gets_what_has_come_of_it_warrants() {
    let pool = ChunkPool::new(16 << 20);
    let _held: Vec<_> = (0..3).map(|_| partial(&pool, 3 << 20, 3 << 20)).collect();
    let mut stranger = partial(&pool, 2 << 20, 100);
    assert!(prepare(&mut stranger));
    assert_eq!(stranger.state().held_bytes(), 8 * KIB);
    fill(&mut stranger, &pattern(8 * KIB, 0));
    assert_eq!(stranger.state().held_bytes(), 32 * KIB);
    fill(&mut stranger, &pattern((2 << 20) - 100 - 8 * KIB, 0));
    drop(stranger.take(2 << 20));
    stranger.rest();
    fill(&mut stranger, &pattern(100, 0));
    stranger.reserve(2 << 20);
    assert!(prepare(&mut stranger));
    assert_eq!(stranger.state().held_bytes(), 64 * KIB, "one that is known for long frames gets more");
}

/// A buffer with the beginning of a frame of `length` bytes.
fn partial(pool: &ChunkPool, length: usize, filled: usize) -> ReceiveBuffer {
    let mut buffer = ReceiveBuffer::new(pool.clone());
    fill(&mut buffer, &pattern(filled.min(100), 0));
    buffer.rest();
    buffer.reserve(length);
    fill(&mut buffer, &pattern(filled.saturating_sub(100), 0));
    buffer
}

#[test]
fn a_small_request_never_waits_for_memory() {
    let pool = ChunkPool::new(4 << 20);
    let _short: Vec<_> = (0..200).map(|_| partial(&pool, 32 * KIB, 1_000)).collect();
    let mut crowd: Vec<_> = (0..400).map(|_| partial(&pool, 32 * KIB, 100)).collect();
    crowd.iter_mut().for_each(|buffer| _ = prepare(buffer));
    assert!(pool.wanted_bytes() > 0);
    let in_use = pool.in_use_bytes();
    let mut small = ReceiveBuffer::new(pool.clone());
    fill(&mut small, &pattern(1024, 5));
    assert_eq!(small.state().held_bytes(), 0);
    assert_eq!(small.take(1024), pattern(1024, 5));
    assert_eq!(pool.in_use_bytes(), in_use);
}

#[test]
fn a_giant_frame_does_not_keep_other_long_ones_out() {
    let pool = ChunkPool::new(16 << 20);
    let giant = partial(&pool, 40 << 20, 39 << 20);
    let mut long = partial(&pool, 2 << 20, 2 << 20);
    drop(long.take(2 << 20));
    let mut second = ReceiveBuffer::new(pool.clone());
    second.reserve(40 << 20);
    let mut come = 0;
    while come < 39 << 20 && prepare(&mut second) {
        let room = second.room().len();
        second.advance(room);
        come += room;
    }
    assert!(second.state().waits(), "one giant at a time");
    assert!(pool.in_use_bytes() <= (16 << 20) + (40 << 20));
    drop(giant);
    assert!(prepare(&mut second));
}

#[test]
fn a_giant_frame_that_waits_does_not_keep_other_long_ones_out() {
    let pool = ChunkPool::new(16 << 20);
    let _giant = partial(&pool, 40 << 20, 39 << 20);
    for is_proven in [false, true] {
        let buffer = || {
            let mut buffer = ReceiveBuffer::new(pool.clone());
            if is_proven {
                buffer.trust();
            }
            buffer
        };
        let (mut second, mut other) = (buffer(), buffer());
        second.reserve(40 << 20);
        while prepare(&mut second) {
            let room = second.room().len();
            second.advance(room);
        }
        assert!(second.state().waits() && second.filled().len() >= 1 << 20);
        fill(&mut other, &pattern(100, 0));
        other.rest();
        other.reserve(64 * KIB);
        fill(&mut other, &pattern(64 * KIB - 100, 0));
        assert!(other.state().held_bytes() >= 64 * KIB && second.state().waits());
    }
}

#[test]
fn giant_frames_that_come_slowly_leave_half_of_the_memory_of_long_ones_to_others() {
    for giants_are_proven in [false, true] {
        let pool = ChunkPool::new(16 << 20);
        let mut giants: Vec<_> = (0..6).map(|_| ReceiveBuffer::new(pool.clone())).collect();
        for giant in &mut giants {
            if giants_are_proven {
                giant.trust();
            }
            fill(giant, &pattern(100, 0));
            giant.rest();
            giant.reserve(100 << 20);
            // Each as far as it gets without waiting, but less than would have it ask for more than there is.
            while giant.filled().len() < 3 << 20 && prepare(giant) {
                let room = giant.room().len().min((3 << 20) - giant.filled().len());
                giant.advance(room);
            }
        }
        let held: usize = giants.iter().map(|giant| giant.state().held_bytes()).sum();
        assert!((4 << 20..=6 << 20).contains(&held), "{held}");
        for is_proven in [false, true] {
            let mut other = ReceiveBuffer::new(pool.clone());
            if is_proven {
                other.trust();
            }
            fill(&mut other, &pattern(100, 0));
            other.rest();
            other.reserve(1 << 20);
            fill(&mut other, &pattern((1 << 20) - 100, 0));
            drop(other.take(1 << 20));
        }
    }
}

#[test]
fn what_large_frames_do_not_use_long_ones_have_until_a_large_one_comes() {
    let pool = ChunkPool::new(16 << 20);
    // Has the place beyond the budget.
    let _giant = partial(&pool, 40 << 20, 39 << 20);
    let mut long: Vec<_> = (0..11).map(|_| partial(&pool, 1 << 20, 1 << 20)).collect();
    assert!(pool.in_use_bytes() >= (40 + 11) << 20, "nearly all of the 12 MiB");
    let mut large = partial(&pool, 5 << 20, 100);
    while prepare(&mut large) {
        let room = large.room().len();
        large.advance(room);
    }
    assert!(large.state().waits());
    long.truncate(5);
    let mut others: Vec<_> = (0..7).map(|_| partial(&pool, 1 << 20, 100)).collect();
    for other in &mut others {
        while other.filled().len() < 1 << 20 && prepare(other) {
            let room = other.room().len().min((1 << 20) - other.filled().len());
            other.advance(room);
        }
    }
    assert!(prepare(&mut large), "half of it is kept for large ones");
}

#[test]
fn a_crowd_that_begins_long_frames_leaves_their_memory_to_those_who_have_ended_one() {
    let pool = ChunkPool::new(4 << 20);
    let mut producer = partial(&pool, 100 * KIB, 100 * KIB);
    drop(producer.take(100 * KIB));
    producer.rest();
    let mut strangers: Vec<_> = (0..2000).map(|_| partial(&pool, 1 << 20, 100)).collect();
    strangers.iter_mut().for_each(|buffer| _ = prepare(buffer));
    assert!(strangers.iter().any(|buffer| buffer.state().waits()));
    for _ in 0..3 {
        fill(&mut producer, &pattern(100, 0));
        producer.reserve(600 * KIB);
        fill(&mut producer, &pattern(600 * KIB - 100, 0));
        drop(producer.take(600 * KIB));
        producer.rest();
    }
}

#[test]
fn frames_that_wait_for_one_another_take_one_beyond_the_budget_at_a_time() {
    let pool = ChunkPool::new(4 << 20);
    let mut crowd: Vec<_> = (0..600).map(|_| partial(&pool, 2 << 20, 100)).collect();
    let mut come = vec![100; crowd.len()];
    for _ in 0..100 {
        for (buffer, come) in crowd.iter_mut().zip(&mut come) {
            // All of it, but for the last bytes, as fast as there is room.
            while *come < (2 << 20) - 10 && prepare(buffer) {
                let room = buffer.room().len().min((2 << 20) - 10 - *come);
                buffer.advance(room);
                *come += room;
            }
        }
        assert!(pool.in_use_bytes() <= (4 << 20) + (2 << 20), "{}", pool.in_use_bytes());
    }
    let stuck: Vec<usize> = (0..FRAME_KINDS).filter(|kind| pool.stuck()[*kind].is_some()).collect();
    let waiting = crowd.iter().filter(|buffer| buffer.state().waits());
    let kinds: Vec<_> = waiting.filter_map(|buffer| buffer.state().kind()).collect();
    assert!(kinds.iter().all(|kind| stuck.contains(kind)) && !kinds.is_empty());
    // Whoever is closed leaves the others his memory.
    let before: usize = come.iter().sum();
    for buffer in crowd.iter_mut().filter(|buffer| buffer.state().waits()).take(50) {
        *buffer = ReceiveBuffer::new(pool.clone());
    }
    for (buffer, come) in crowd.iter_mut().zip(&mut come) {
        while buffer.state().frame_bytes() > 0 && *come < (2 << 20) - 10 && prepare(buffer) {
            let room = buffer.room().len().min((2 << 20) - 10 - *come);
            buffer.advance(room);
            *come += room;
        }
    }
    assert!(come.iter().sum::<usize>() > before);
}

#[test]
fn one_that_goes_on_in_its_chunk_leaves_the_line() {
    let pool = ChunkPool::new(8 << 20);
    let [mut other, mut buffer] = [(); 2].map(|()| ReceiveBuffer::new(pool.clone()));
    other.trust();
    other.reserve(2 << 20);
    fill(&mut other, &pattern(2 << 20, 0));
    buffer.trust();
    buffer.reserve(300 * KIB);
    // The next one's beginning comes with it, into the same chunk.
    fill(&mut buffer, &pattern(920 * KIB, 0));
    let _first = buffer.take(300 * KIB);
    buffer.reserve(5 << 20);
    assert!(!prepare(&mut buffer), "there is no room for what it would like to have");
    assert!(buffer.state().waits() && pool.wanted_bytes() > 0);
    assert!(prepare(&mut buffer), "now it goes by what it must have");
    assert!(!buffer.state().waits());
    assert_eq!(pool.wanted_bytes(), 0);
}

#[test]
fn somebody_who_waits_is_told_to_who_asked() {
    let pool = ChunkPool::new(32 * KIB);
    let waker = noop_waker();
    let mut cx = Context::from_waker(&waker);
    let mut first = ReceiveBuffer::new(pool.clone());
    assert!(prepare(&mut first));
    assert!(pool.poll_pressure(&mut cx).is_pending());
    let mut second = ReceiveBuffer::new(pool.clone());
    assert!(!prepare(&mut second));
    assert!(second.state().waits());
    assert!(pool.poll_pressure(&mut cx).is_ready());
    drop(first);
    assert!(prepare(&mut second));
    assert!(!second.state().waits());
}

#[test]
fn one_that_is_closed_does_not_go_on_waiting() {
    let pool = ChunkPool::new(32 * KIB);
    let mut first = ReceiveBuffer::new(pool.clone());
    assert!(prepare(&mut first));
    let mut second = ReceiveBuffer::new(pool.clone());
    assert!(!prepare(&mut second));
    second.state().close();
    let waker = noop_waker();
    assert!(matches!(second.poll_prepare(&mut Context::from_waker(&waker)), Poll::Ready(Err(_))));
}

#[test]
fn trim_frees_what_was_not_needed_since_the_last_one() {
    let pool = ChunkPool::new(1 << 20);
    let mut buffers: Vec<_> = (0..8).map(|_| ReceiveBuffer::new(pool.clone())).collect();
    assert!(buffers.iter_mut().all(prepare));
    drop(buffers);
    assert_eq!(pool.idle_bytes(), 256 * KIB);
    pool.trim();
    assert_eq!(pool.idle_bytes(), 256 * KIB);
    let mut one = ReceiveBuffer::new(pool.clone());
    assert!(prepare(&mut one));
    drop(one);
    pool.trim();
    assert_eq!(pool.idle_bytes(), 32 * KIB);
    pool.trim();
    assert_eq!(pool.idle_bytes(), 0);
}
