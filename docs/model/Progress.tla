------------------------------- MODULE Progress -------------------------------
(***************************************************************************)
(* Whether a group has processed a partition: the predicate that Hold and  *)
(* Removal share, and that ordered_resize/progress.py has in the code.     *)
(***************************************************************************)
EXTENDS Integers

\* position: the group's report or commit, below 0 if there is none. empty: the partition has no record for the group below this
\* offset. emptyCounts: whether that counts as a position; it does not while a live member may report.
IsDone(position, empty, emptyCounts, end) == position >= end \/ (emptyCounts /\ empty >= end)
=============================================================================
