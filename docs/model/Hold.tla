--------------------------------- MODULE Hold ---------------------------------
(***************************************************************************)
(* Stock consumer groups read a topic that is resized by the rule of       *)
(* module Lineage. They have no gate. The leader of a partition answers    *)
(* their fetches only up to the last leader epoch whose entries every      *)
(* group has processed, by the coordinators' answers. A group's position   *)
(* is its commit. A resize is one step here. README.md lists the           *)
(* omissions.                                                              *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, Progress

CONSTANTS
  Initial,    \* initial_partition_count
  Ids,        \* the largest number of partitions
  Start,      \* the count at the beginning
  Script,     \* the events of the topic, in this order: <<"write", key>>, <<"count", n>>, or <<"marker", p>> (an offset without a record)
  Groups,
  Latest,     \* groups with auto.offset.reset=latest; the others have earliest
  Mute,       \* groups that never commit
  Later,      \* groups that do not exist at the beginning
  Faults,     \* how many faults of each kind: [restart, election, delete]
  Off         \* the rules that are switched off

VARIABLES
  played,     \* the number of events of the script that have happened
  count,      \* the partition count
  part,       \* by partition: whether it exists, the first offset of its log, its leader epoch, its lineage, the last epoch of a removed incarnation
  log, start,
  group,      \* there: it exists; life: distinguishes groups of the same name; up: it has begun in all partitions
  committed,  \* by group and partition, or None
  at,         \* the next offset of the partition's member, or None if it has not begun
  unwritten,  \* by new partition, the groups whose first offset the coordinator has not committed yet
  known,      \* by partition and group, the last answer that the leader has
  deposed,    \* by partition, a deposed leader that still serves: the answers that it has, and its log end
  released,   \* by partition, the waits that ended by max.hold
  owed, delivered, broken,
  left        \* faults that may still happen

topic == <<played, count, part, log, start>>
leaders == <<known, deposed, released>>
user == <<owed, delivered, broken>>
vars == <<topic, group, committed, at, unwritten, leaders, user, left>>

Rule(name) == name \notin Off
Parts == 0..(Ids - 1)
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x
Smallest(S) == CHOOSE x \in S : \A y \in S : x <= y

Base(n) == CHOOSE m \in {Initial * 2^l : l \in 0..4} : m <= n /\ n < 2 * m
Place(hash, n) == IF hash % Base(n) < n - Base(n) THEN hash % (2 * Base(n)) ELSE hash % Base(n)
RECURSIVE Ancestors(_)
Ancestors(p) == IF p < Initial THEN {} ELSE {p - Base(p)} \cup Ancestors(p - Base(p))
AncestorBelow(p, n) == Largest({a \in Ancestors(p) : a < n})

None == -1
NoRecord == 0
NotAsked == [asked |-> FALSE, life |-> 0, committed |-> <<>>]
NothingKnown == [g \in Groups |-> NotAsked]
NoLeader == [known |-> NothingKnown, end |-> None]

Init ==
  /\ played = 0 /\ count = Start
  /\ part = [p \in Parts |-> [there |-> p < Start, base |-> 0, epoch |-> IF p < Start THEN 0 ELSE -1, lineage |-> {}, gone |-> -1]]
  /\ log = [p \in Parts |-> <<>>] /\ start = [p \in Parts |-> 0]
  /\ group = [g \in Groups |-> [there |-> g \notin Later, life |-> IF g \in Later THEN 0 ELSE 1, up |-> g \notin Later]]
  /\ committed = [g \in Groups |-> [p \in Parts |-> None]]
  /\ at = [g \in Groups |-> [p \in Parts |-> IF g \notin Later /\ p < Start THEN 0 ELSE None]]
  /\ unwritten = [p \in Parts |-> {}]
  /\ known = [p \in Parts |-> NothingKnown] /\ deposed = [p \in Parts |-> NoLeader] /\ released = [p \in Parts |-> {}]
  /\ owed = [g \in Groups |-> {}] /\ delivered = [g \in Groups |-> {}] /\ broken = ""
  /\ left = Faults

There == {p \in Parts : part[p].there}
End(p) == Len(log[p])
Hole(p, i) == i <= start[p] \/ log[p][i].key = NoRecord
OnlyHoles(p, from, to) == \A i \in (from + 1)..to : Hole(p, i)

-----------------------------------------------------------------------------
(* The topic *)

Moves(old, new) ==
  IF new > old THEN {<<AncestorBelow(p, old), p>> : p \in old..(new - 1)}
  ELSE {<<p, AncestorBelow(p, new)>> : p \in new..(old - 1)}
Over(x) == part[x[2]].gone >= x[3]
Resized(new) ==
  LET moves == Moves(count, new)
      gained(p) == {m[1] : m \in {x \in moves : x[2] = p}}
      concerned == 0..(new - 1) \cup {m[1] : m \in moves}
      bumped(p) == [part[p] EXCEPT
        !.there = TRUE, !.epoch = @ + 1, !.base = IF part[p].there THEN @ ELSE End(p),
        !.lineage = {x \in @ : ~Over(x)} \cup {<<part[p].epoch + 1, q, part[q].epoch>> : q \in gained(p)}]
  IN [p \in Parts |-> IF p \in concerned THEN bumped(p) ELSE part[p]]
\* The partitions for whose first offset groups get a commit: those that are created. A revived partition has readers already.
Created(new) == {p \in 0..(new - 1) : ~part[p].there \/ (~Rule("created_only") /\ p >= count)}

Number(k) == Cardinality({<<p, i>> \in Parts \X (1..Len(Script)) : i <= End(p) /\ log[p][i].key = k}) + 1
Appended(p, k) == [log EXCEPT ![p] = Append(@, [key |-> k, number |-> IF k = NoRecord THEN 0 ELSE Number(k), epoch |-> part[p].epoch])]
Play ==
  /\ played < Len(Script) /\ played' = played + 1
  /\ LET step == Script[played + 1] IN
     CASE step[1] = "count" ->
            /\ count' = step[2] /\ part' = Resized(step[2])
            /\ unwritten' = [p \in Parts |-> IF p \in Created(step[2]) THEN {g \in Groups : group[g].there} ELSE unwritten[p]]
            /\ UNCHANGED <<log, owed>>
       [] step[1] = "write" ->
            /\ log' = Appended(Place(step[2], count), step[2])
            /\ owed' = [g \in Groups |-> IF group[g].up THEN owed[g] \cup {<<step[2], Number(step[2])>>} ELSE owed[g]]
            /\ UNCHANGED <<count, part, unwritten>>
       [] OTHER -> log' = Appended(step[2], NoRecord) /\ UNCHANGED <<count, part, unwritten, owed>>
  /\ UNCHANGED <<start, group, committed, at, leaders, delivered, broken, left>>

\* A commit counts up to the next record.
NextRecord(q, from) == Smallest({j \in from..End(q) : j = End(q) \/ ~Hole(q, j + 1)})
Processed(q, offset, end) ==
  IsDone(offset, NextRecord(q, IF offset = None THEN 0 ELSE offset), Rule("holes_count"), end)
Remove(p) ==
  /\ part[p].there /\ p >= count /\ \A q \in There : q <= p
  /\ \A g \in Groups : group[g].there => Processed(p, committed[g][p], End(p))
  /\ part' = [part EXCEPT ![p] = [@ EXCEPT !.there = FALSE, !.lineage = {}, !.gone = part[p].epoch]]
  /\ start' = [start EXCEPT ![p] = End(p)]
  /\ at' = [g \in Groups |-> [at[g] EXCEPT ![p] = None]]
  /\ known' = [known EXCEPT ![p] = NothingKnown] /\ deposed' = [deposed EXCEPT ![p] = NoLeader]
  /\ released' = [released EXCEPT ![p] = {}]
  /\ UNCHANGED <<played, count, log, group, committed, unwritten, user, left>>

-----------------------------------------------------------------------------
(* Leaders *)

\* A leader asks a group's coordinator at any time. The answer may have any age when the leader uses it.
Answer(p, g) ==
  IF group[g].there THEN [asked |-> TRUE, life |-> group[g].life,
                          committed |-> IF Rule("commits_count") THEN committed[g] ELSE at[g]]
  ELSE IF Rule("deleted_forgotten") \/ ~known[p][g].asked THEN [asked |-> TRUE, life |-> 0, committed |-> <<>>]
  ELSE known[p][g]
Ask(p, g) ==
  /\ part[p].there /\ part[p].lineage # {} /\ known[p][g] # Answer(p, g)
  /\ known' = [known EXCEPT ![p][g] = Answer(p, g)]
  /\ UNCHANGED <<topic, group, committed, at, unwritten, deposed, released, user, left>>

EndOf(q, f) == Cardinality({i \in DOMAIN log[q] : log[q][i].epoch <= f})
\* Whether a group in a leader's answer has processed q up to the end of epoch f.
IsPast(p, told, g, q, f) ==
  \/ Processed(q, told.committed[q], EndOf(q, f))
  \/ ~Rule("no_commit_holds") /\ told.committed[q] = None
  \/ <<g, told.life, q, f>> \in released[p]
RECURSIVE Satisfied(_, _, _, _, _)
Satisfied(p, told, g, q, f) ==
  \/ part[q].gone >= f
  \/ IF ~told.asked THEN ~Rule("all_asked") ELSE told.life = 0
  \/ /\ told.asked /\ told.life > 0
     /\ IsPast(p, told, g, q, f)
     /\ Rule("recursion") => \A x \in part[q].lineage : x[1] <= f => Satisfied(p, told, g, x[2], x[3])
Lets(p, said, g, x) == Satisfied(p, said[g], g, x[2], x[3])
\* The last leader epoch that leaders serve to fetches without a layout.
Cap(p, said) ==
  LET held == {x[1] : x \in {z \in part[p].lineage :
        IF Rule("all_groups") THEN \E g \in Groups : ~Lets(p, said, g, z) ELSE \A g \in Groups : ~Lets(p, said, g, z)}} IN
  IF ~Rule("hold") \/ held = {} THEN part[p].epoch ELSE Smallest(held) - 1

\* max.hold is over for one group and one awaited epoch. A group that reads and commits does so within max.hold. So it ends only for
\* a group that never commits, or that began after the awaited epoch and has nothing to commit there.
HasNothing(g, q, f) ==
  /\ at[g][q] # None /\ committed[g][q] = None /\ OnlyHoles(q, at[g][q], EndOf(q, f))
  /\ ~(\E d \in delivered[g] : d[3] = q)
Named == UNION {part[p].lineage : p \in There}
Release(p, g) == \E x \in Named :
  LET told == known[p][g]  q == x[2]  f == x[3] IN
  /\ Rule("max_hold") /\ part[p].lineage # {} /\ group[g].there /\ told.life = group[g].life
  /\ g \in Mute \/ HasNothing(g, q, f)
  /\ part[q].gone < f /\ ~IsPast(p, told, g, q, f)
  /\ released' = [released EXCEPT ![p] = @ \cup {<<g, told.life, q, f>>}]
  /\ UNCHANGED <<topic, group, committed, at, unwritten, known, deposed, user, left>>

\* The new leader has no answers yet. The former leader continues to serve until its lease is over.
Election(p) ==
  /\ left.election > 0 /\ left' = [left EXCEPT !.election = @ - 1]
  /\ part[p].there /\ part[p].lineage # {}
  /\ part' = [part EXCEPT ![p].epoch = @ + 1]
  /\ known' = [known EXCEPT ![p] = NothingKnown]
  /\ deposed' = [deposed EXCEPT ![p] = [known |-> known[p], end |-> End(p)]]
  /\ UNCHANGED <<played, count, log, start, group, committed, at, unwritten, released, user>>
LeaseEnds(p) ==
  /\ deposed[p].end # None /\ deposed' = [deposed EXCEPT ![p] = NoLeader]
  /\ UNCHANGED <<topic, group, committed, at, unwritten, known, released, user, left>>

-----------------------------------------------------------------------------
(* Groups and their coordinators *)

Records == {<<log[p][i].key, log[p][i].number>> : <<p, i>> \in {x \in Parts \X (1..Len(Script)) : x[2] <= End(x[1]) /\ ~Hole(x[1], x[2])}}
Appear(g) ==
  /\ ~group[g].there /\ g \in Later /\ group[g].life <= Faults.delete
  /\ group' = [group EXCEPT ![g] = [there |-> TRUE, life |-> @.life + 1, up |-> g \notin Latest]]
  /\ owed' = [owed EXCEPT ![g] = IF g \in Latest THEN {} ELSE Records]
  /\ delivered' = [delivered EXCEPT ![g] = {}]
  /\ UNCHANGED <<topic, committed, at, unwritten, leaders, broken, left>>
Delete(g) ==
  /\ left.delete > 0 /\ left' = [left EXCEPT !.delete = @ - 1]
  /\ group[g].there /\ group' = [group EXCEPT ![g].there = FALSE, ![g].up = FALSE]
  /\ committed' = [committed EXCEPT ![g] = [p \in Parts |-> None]]
  /\ at' = [at EXCEPT ![g] = [p \in Parts |-> None]]
  /\ unwritten' = [p \in Parts |-> unwritten[p] \ {g}]
  /\ owed' = [owed EXCEPT ![g] = {}] /\ delivered' = [delivered EXCEPT ![g] = {}]
  /\ UNCHANGED <<topic, leaders, broken>>

\* The coordinator commits the first offset of a new partition for a group that has no commit there.
Losers(p) == {x[2] : x \in part[p].lineage}
WriteBeginning(g, p) ==
  /\ g \in unwritten[p] /\ unwritten' = [unwritten EXCEPT ![p] = @ \ {g}]
  /\ committed' =
       IF (committed[g][p] = None \/ ~Rule("commits_stay")) /\ part[p].there
          /\ (Rule("live_groups") \/ \E q \in Losers(p) : committed[g][q] # None)
       THEN [committed EXCEPT ![g][p] = IF Rule("created_only") THEN part[p].base ELSE EndOf(p, part[p].epoch - 1)]
       ELSE committed
  /\ UNCHANGED <<topic, group, at, leaders, user, left>>

\* OffsetFetch: a member begins at the commit, or by auto.offset.reset. The coordinator answers when the first offset is written, and
\* when every leader that may serve the partition counts the group.
IsCounted(g, said) == said[g].asked /\ (IF Rule("group_lives") THEN said[g].life = group[g].life ELSE said[g].life > 0)
MayBegin(g, p) ==
  /\ Rule("written_first") => g \notin unwritten[p]
  /\ Rule("counted_first") /\ part[p].lineage # {} =>
       IsCounted(g, known[p]) /\ (Rule("lease") /\ deposed[p].end # None => IsCounted(g, deposed[p].known))
Begin(g, p) ==
  LET to == IF committed[g][p] # None THEN Largest({committed[g][p], start[p]})
            ELSE IF g \in Latest THEN End(p) ELSE start[p]
      begun == [at EXCEPT ![g][p] = to] IN
  /\ group[g].there /\ part[p].there /\ at[g][p] = None /\ MayBegin(g, p)
  /\ at' = begun
  /\ group' = [group EXCEPT ![g].up = @ \/ \A q \in There : begun[g][q] # None]
  /\ broken' =
       IF \E i \in 1..to : ~Hole(p, i) /\ <<log[p][i].key, log[p][i].number>> \in owed[g]
                           /\ ~(\E d \in delivered[g] : d[1] = log[p][i].key /\ d[2] = log[p][i].number)
       THEN "a record was skipped" ELSE broken
  /\ UNCHANGED <<topic, committed, unwritten, leaders, owed, delivered, left>>

Next1(g, p) == NextRecord(p, at[g][p]) + 1
Sees(p, i) ==
  \/ log[p][i].epoch <= Cap(p, known[p])
  \/ deposed[p].end >= i /\ log[p][i].epoch <= Cap(p, deposed[p].known)
HasRecord(g, p) == group[g].there /\ part[p].there /\ at[g][p] # None /\ Next1(g, p) <= End(p)
Deliver(g, p) ==
  /\ HasRecord(g, p)
  /\ LET i == Next1(g, p)  r == log[p][i] IN
     /\ Sees(p, i)
     /\ at' = [at EXCEPT ![g][p] = i]
     /\ delivered' = [delivered EXCEPT ![g] = @ \cup {<<r.key, r.number, p>>}]
     /\ broken' = IF g \notin Mute /\ \E d \in delivered[g] : d[1] = r.key /\ d[2] > r.number /\ d[3] # p
                  THEN "a newer record came before" ELSE broken
  /\ UNCHANGED <<topic, group, committed, unwritten, leaders, owed, left>>

Commit(g, p) ==
  /\ g \notin Mute /\ group[g].there /\ part[p].there /\ at[g][p] > committed[g][p]
  /\ ~OnlyHoles(p, IF committed[g][p] = None THEN 0 ELSE committed[g][p], at[g][p])
  /\ \E d \in delivered[g] : d[3] = p
  /\ committed' = [committed EXCEPT ![g][p] = at[g][p]]
  /\ UNCHANGED <<topic, group, at, unwritten, leaders, user, left>>

\* A member crashes, or the group rebalances: a member starts again. Without a commit auto.offset.reset decides, by the user's choice.
Restart(g, p) ==
  /\ left.restart > 0 /\ left' = [left EXCEPT !.restart = @ - 1]
  /\ group[g].there /\ at[g][p] # None /\ (committed[g][p] # None \/ g \notin Latest)
  /\ at' = [at EXCEPT ![g][p] = None]
  /\ UNCHANGED <<topic, group, committed, unwritten, leaders, user>>

-----------------------------------------------------------------------------
Work ==
  \/ Play
  \/ \E p \in Parts :
       \/ Remove(p) \/ LeaseEnds(p)
       \/ \E g \in Groups : Ask(p, g) \/ Release(p, g) \/ WriteBeginning(g, p) \/ Begin(g, p) \/ Deliver(g, p) \/ Commit(g, p)
Bad ==
  \/ \E p \in Parts : Election(p)
  \/ \E g \in Groups : Appear(g) \/ Delete(g) \/ \E p \in Parts : Restart(g, p)
Next == Work \/ Bad
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Properties *)

\* Each group gets each key in order, and skips no record. A group that never commits has no order after max.hold.
Promise == broken = ""
Has(g, a) == \E d \in delivered[g] : d[1] = a[1] /\ d[2] = a[2]
\* When no step is possible, every group has all records that were written since it had begun in all partitions.
NoHang == ~ENABLED Work => played = Len(Script) /\ \A g \in Groups : group[g].there => \A a \in owed[g] : Has(g, a)
=============================================================================
