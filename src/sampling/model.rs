//! Models of what the profile finds without a lock: the texts of tags, and whether a block may be sampled.

use super::{live, tags};
use crate::sync::loom::{aside, beside, model_of_statics as model, second};

/// Two threads enter the same scope: both get the same number, and find the text.
#[test]
fn a_tag_has_one_number_and_its_text() {
    model(Some(3), || {
        let number = || {
            let number = tags::number(b"a");
            assert_eq!(tags::text(number), Some(&b"a"[..]));
            number
        };
        let other = beside(number);
        let ours = second(number);
        assert_eq!(ours, other.join().unwrap());
        aside(tags::unmap);
    });
}

/// Two texts that begin at the same place.
#[test]
fn two_tags_have_two_numbers() {
    model(Some(2), || {
        let other = beside(|| tags::number(b"a"));
        let ours = second(|| tags::number(b"b"));
        let theirs = other.join().unwrap();
        assert_ne!(ours, theirs);
        assert_eq!((tags::text(ours), tags::text(theirs)), (Some(&b"b"[..]), Some(&b"a"[..])));
        aside(tags::unmap);
    });
}

/// Whoever has a block that is sampled finds it in the table, be that an old one or one just made.
#[test]
fn a_sampled_block_is_found_in_a_table_that_grows() {
    model(Some(3), || {
        live::model::table_grows_beside(|block| live::may_hold(block));
    });
}
