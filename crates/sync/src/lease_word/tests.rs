//! The lease word alone: its states one after the other, and random operations against a naive model.

use super::LeaseWord;

#[cfg(loom)]
fn alone(scenario: impl Fn() + Send + Sync + 'static) {
    loom::model(scenario);
}

#[cfg(not(loom))]
fn alone(scenario: impl Fn() + Send + Sync + 'static) {
    scenario();
}

/// The word alone, as a domain uses it while nobody publishes.
impl LeaseWord {
    fn try_read(&self) -> bool {
        self.try_read_at_once(self.peek()) || self.try_read_slowly().0
    }

    fn read_spinning(&self) -> bool {
        self.spin_for_read();
        self.try_read()
    }

    fn try_write(&self) -> bool {
        self.try_write_unpublished().is_some()
    }

    fn write_spinning(&self) -> bool {
        self.spin_for_write();
        self.try_write()
    }
}

#[test]
fn readers_share_and_keep_writers_out() {
    alone(|| {
        let word = LeaseWord::new();
        assert!(word.try_read());
        assert!(word.try_read());
        assert!(!word.try_write());
        word.release_read();
        assert!(!word.write_spinning());
        word.release_read();
        assert!(word.try_write());
    });
}

#[test]
fn a_writer_keeps_everybody_out() {
    alone(|| {
        let word = LeaseWord::new();
        assert!(word.try_write());
        assert!(!word.try_write());
        assert!(!word.try_read());
        assert!(!word.read_spinning());
        word.release_write();
        assert!(word.read_spinning());
        word.release_read();
        assert!(word.write_spinning());
    });
}

#[test]
fn an_announcement_that_no_writer_follows_up_keeps_no_lone_reader_out() {
    alone(|| {
        let word = LeaseWord::new();
        word.announce_writer();
        assert!(!word.try_read(), "where others may be in it is kept");
        assert!(word.try_read_alone(word.peek()));
        assert!(!word.try_write_alone(), "the reader is in");
        word.release_read_alone();
        assert!(word.try_read(), "the announcement is over for all");
        word.release_read();
    });
}

#[test]
fn a_lone_reader_stays_out_while_a_writer_is_in() {
    alone(|| {
        let word = LeaseWord::new();
        assert!(word.try_write_alone());
        word.announce_writer();
        assert!(!word.try_read_alone(word.peek()));
        word.release_write_alone();
        assert!(word.try_read_alone(word.peek()));
        word.release_read_alone();
    });
}

#[test]
fn an_impatient_reader_ends_the_announcement_of_a_free_word_only() {
    alone(|| {
        let word = LeaseWord::new();
        assert!(word.try_read());
        word.announce_writer();
        word.end_announcement();
        assert!(!word.try_read(), "a reader is in: the writer still waits for it");
        word.release_read();
        word.end_announcement();
        assert!(word.try_read());
        word.release_read();
        assert!(word.try_write());
        word.announce_writer();
        word.end_announcement();
        word.release_write();
        assert!(!word.try_read(), "who waited for the writer still does");
    });
}

#[test]
fn an_announcement_refuses_new_readers_until_a_writer_got_in() {
    alone(|| {
        let word = LeaseWord::new();
        assert!(word.try_read());
        word.announce_writer();
        assert!(!word.try_read(), "the reader that is in stays, but no other joins it");
        word.release_read();
        word.announce_writer();
        assert!(!word.try_read(), "free, but promised to a writer");
        assert!(word.try_write());
        word.release_write();
        assert!(word.try_read(), "the writer's entry ended the announcement");
    });
}

#[test]
fn an_announcement_made_under_a_writer_survives_its_release() {
    alone(|| {
        let word = LeaseWord::new();
        assert!(word.try_write());
        word.announce_writer();
        assert!(!word.try_read());
        word.release_write();
        assert!(!word.try_read());
        assert!(word.try_write());
    });
}

#[test]
fn an_abandoned_announcement_lapses_after_a_fixed_number_of_refusals() {
    alone(|| {
        let word = LeaseWord::new();
        word.announce_writer();
        for _ in 0..LeaseWord::PATIENCE_MAX {
            assert!(!word.try_read());
        }
        assert!(word.try_read());
        word.announce_writer();
        for _ in 0..LeaseWord::PATIENCE_MAX {
            assert!(!word.read_spinning());
        }
        assert!(word.read_spinning(), "also while another reader is in");
    });
}

#[cfg(not(loom))]
#[test]
fn random_operations_agree_with_a_naive_model() {
    #[derive(Default)]
    struct Model {
        readers: u32,
        writer: bool,
        patience: u32,
    }

    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let word = LeaseWord::new();
    let mut model = Model::default();
    for step in 0..200_000 {
        match random.u32(0..100) {
            0..40 => {
                let expected = !model.writer && model.patience == 0;
                model.readers += u32::from(expected);
                if !model.writer {
                    model.patience = model.patience.saturating_sub(1);
                }
                assert_eq!(word.try_read(), expected, "step {step}");
            }
            40..60 => {
                let expected = !model.writer && model.readers == 0;
                if expected {
                    (model.writer, model.patience) = (true, 0);
                }
                assert_eq!(word.try_write(), expected, "step {step}");
            }
            60 if random.u32(0..20) == 0 => {
                word.announce_writer();
                model.patience = LeaseWord::PATIENCE_MAX;
            }
            _ if model.writer => {
                word.release_write();
                model.writer = false;
            }
            _ if model.readers > 0 => {
                word.release_read();
                model.readers -= 1;
            }
            _ => {}
        }
    }
}

#[cfg(loom)]
mod interleaved {
    //! The announcement while several threads look at it.

    use std::sync::Arc;

    use loom::thread;

    use super::LeaseWord;
    use crate::loom::explore;

    /// Tries until it gets in and says how often it was refused.
    fn refusals_until_in(word: &LeaseWord) -> u32 {
        (0..).find(|_| word.try_read()).expect("it gets in at last")
    }

    #[test]
    fn rivals_are_refused_no_more_often_than_the_announcement_is_worth() {
        explore(4, || {
            let word = Arc::new(LeaseWord::new());
            word.announce_writer();
            let other = {
                let word = Arc::clone(&word);
                thread::spawn(move || refusals_until_in(&word))
            };
            let refusals = refusals_until_in(&word);
            assert_eq!(refusals + other.join().unwrap(), LeaseWord::PATIENCE_MAX);
        });
    }

    #[test]
    fn a_writer_that_announces_and_goes_away_locks_nobody_out() {
        explore(4, || {
            let word = Arc::new(LeaseWord::new());
            let gone = {
                let word = Arc::clone(&word);
                thread::spawn(move || word.announce_writer())
            };
            assert!(refusals_until_in(&word) <= LeaseWord::PATIENCE_MAX);
            word.release_read();
            gone.join().unwrap();
            assert!(refusals_until_in(&word) <= LeaseWord::PATIENCE_MAX);
        });
    }

    #[test]
    fn an_announcement_is_not_lost_between_a_holders_release_and_a_readers_arrival() {
        for holder_writes in [false, true] {
            explore(4, move || {
                let word = Arc::new(LeaseWord::new());
                assert!(if holder_writes {
                    word.try_write()
                } else {
                    word.try_read()
                });
                let holder = {
                    let word = Arc::clone(&word);
                    thread::spawn(move || {
                        if holder_writes {
                            word.release_write()
                        } else {
                            word.release_read()
                        }
                    })
                };
                word.announce_writer();
                assert!(!word.try_read(), "nobody gets in before a writer");
                holder.join().unwrap();
                assert!(word.try_write());
            });
        }
    }
}
