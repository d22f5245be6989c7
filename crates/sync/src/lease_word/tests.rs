//! The lease word in isolation: its states one after the other, and random operations against a naive model.

use super::LeaseWord;

#[cfg(loom)]
fn explored(scenario: impl Fn() + Send + Sync + 'static) {
    loom::model(scenario);
}

#[cfg(not(loom))]
fn explored(scenario: impl Fn() + Send + Sync + 'static) {
    scenario();
}

/// The word as a domain uses it while no reader is published.
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

    /// Returns `true` if a writer has announced itself and the announcement has not ended.
    #[cfg(loom)]
    pub(crate) fn is_announced(&self) -> bool {
        self.peek() & super::REFUSALS != 0
    }
}

#[test]
fn readers_share_and_exclude_writers() {
    explored(|| {
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
fn a_writer_excludes_all_others() {
    explored(|| {
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
fn a_biased_reader_ignores_an_abandoned_announcement() {
    explored(|| {
        let word = LeaseWord::new();
        word.announce_writer();
        assert!(!word.try_read(), "an unbiased reader respects it");
        assert!(word.try_read_biased(word.peek()));
        assert!(!word.try_write_biased(), "a reader holds the word");
        word.release_read_biased();
        assert!(word.try_read(), "the announcement has ended for all readers");
        word.release_read();
    });
}

#[test]
fn a_biased_reader_is_refused_while_a_writer_holds_the_word() {
    explored(|| {
        let word = LeaseWord::new();
        assert!(word.try_write_biased());
        word.announce_writer();
        assert!(!word.try_read_biased(word.peek()));
        word.release_write_biased();
        assert!(word.try_read_biased(word.peek()));
        word.release_read_biased();
    });
}

#[test]
fn a_reader_may_end_the_announcement_of_a_free_word_only() {
    explored(|| {
        let word = LeaseWord::new();
        assert!(word.try_read());
        word.announce_writer();
        word.end_announcement();
        assert!(
            !word.try_read(),
            "a reader holds the word: the writer still waits for it"
        );
        word.release_read();
        word.end_announcement();
        assert!(word.try_read());
        word.release_read();
        assert!(word.try_write());
        word.announce_writer();
        word.end_announcement();
        word.release_write();
        assert!(!word.try_read(), "the second writer still waits");
    });
}

#[test]
fn an_announcement_refuses_new_readers_until_a_writer_is_admitted() {
    explored(|| {
        let word = LeaseWord::new();
        assert!(word.try_read());
        word.announce_writer();
        assert!(!word.try_read(), "the current reader stays, but no other is admitted");
        word.release_read();
        word.announce_writer();
        assert!(!word.try_read(), "free, but announced by a writer");
        assert!(word.try_write());
        word.release_write();
        assert!(word.try_read(), "the writer's admission ended the announcement");
    });
}

#[test]
fn an_announcement_made_under_a_writer_survives_its_release() {
    explored(|| {
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
    explored(|| {
        let word = LeaseWord::new();
        word.announce_writer();
        for _ in 0..LeaseWord::REFUSALS_MAX {
            assert!(!word.try_read());
        }
        assert!(word.try_read());
        word.announce_writer();
        for _ in 0..LeaseWord::REFUSALS_MAX {
            assert!(!word.read_spinning());
        }
        assert!(word.read_spinning(), "also while another reader holds the word");
    });
}

#[cfg(not(loom))]
#[test]
fn random_operations_agree_with_a_naive_model() {
    #[derive(Default)]
    struct Model {
        readers: u32,
        writer: bool,
        refusals_left: u32,
    }

    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let word = LeaseWord::new();
    let mut model = Model::default();
    for step in 0..200_000 {
        match random.u32(0..100) {
            0..40 => {
                let expected = !model.writer && model.refusals_left == 0;
                model.readers += u32::from(expected);
                if !model.writer {
                    model.refusals_left = model.refusals_left.saturating_sub(1);
                }
                assert_eq!(word.try_read(), expected, "step {step}");
            }
            40..60 => {
                let expected = !model.writer && model.readers == 0;
                if expected {
                    (model.writer, model.refusals_left) = (true, 0);
                }
                assert_eq!(word.try_write(), expected, "step {step}");
            }
            60 if random.u32(0..20) == 0 => {
                word.announce_writer();
                model.refusals_left = LeaseWord::REFUSALS_MAX;
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
    //! The announcement while several threads access the word.

    use std::sync::Arc;

    use loom::thread;

    use super::LeaseWord;
    use crate::loom::{Occurrences, explore};

    /// Tries until it is admitted and returns how often it was refused.
    fn refusals_until_admitted(word: &LeaseWord) -> u32 {
        (0..).find(|_| word.try_read()).expect("it is admitted eventually")
    }

    #[test]
    fn readers_are_refused_at_most_as_often_as_an_announcement_allows() {
        static BOTH_REFUSED: Occurrences = Occurrences::new();
        explore(4, || {
            let word = Arc::new(LeaseWord::new());
            word.announce_writer();
            let other = {
                let word = Arc::clone(&word);
                thread::spawn(move || refusals_until_admitted(&word))
            };
            let (own, others) = (refusals_until_admitted(&word), other.join().unwrap());
            assert_eq!(own + others, LeaseWord::REFUSALS_MAX);
            BOTH_REFUSED.count_if(own > 0 && others > 0);
        });
        BOTH_REFUSED.assert_any("an announcement that refuses both readers");
    }

    #[test]
    fn a_writer_that_announces_and_leaves_blocks_no_reader_for_ever() {
        static REFUSED: [Occurrences; 2] = [const { Occurrences::new() }; 2];
        explore(4, || {
            let word = Arc::new(LeaseWord::new());
            let gone = {
                let word = Arc::clone(&word);
                thread::spawn(move || word.announce_writer())
            };
            let refusals = refusals_until_admitted(&word);
            assert!(refusals <= LeaseWord::REFUSALS_MAX);
            REFUSED[0].count_if(refusals > 0);
            word.release_read();
            gone.join().unwrap();
            let refusals = refusals_until_admitted(&word);
            assert!(refusals <= LeaseWord::REFUSALS_MAX);
            REFUSED[1].count_if(refusals > 0);
        });
        REFUSED[0].assert_any("a refusal while the writer is there");
        REFUSED[1].assert_any("a refusal after the writer has left");
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
                assert!(!word.try_read(), "no reader is admitted before a writer");
                holder.join().unwrap();
                assert!(word.try_write());
            });
        }
    }
}
