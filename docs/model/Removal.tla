------------------------------- MODULE Removal -------------------------------
(***************************************************************************)
(* A marked partition is drained and removed while the members of a group  *)
(* know of it late or never. Partition 0 and a child that is split off,    *)
(* merged back and removed, perhaps again and again; one key, which lives  *)
(* in the child while there are two partitions, and has one record in each *)
(* layout. Offsets are committed ahead of the flush callback, as a         *)
(* periodic commit does. README.md says what is left out.                  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Plan,       \* the undeleted counts, 1 or 2, from the first to the last layout
  Members,
  Stock,      \* those that neither poll for positions nor keep order
  Faults,     \* how many of each: [rebalance, failover, eviction, expiry]
  Off         \* the rules that are switched off

VARIABLES
  now,        \* which of the topic's descriptions is true
  drained,    \* the controller was told that the group is done with the marked partition
  group,      \* generation, owner of each partition, who has joined, by which description partitions were assigned, who was thrown out
  memory,     \* the coordinator's, of one generation: who polled, whose silence lasted, what is wanted, what was reported
  committed,
  member,
  flushed,    \* how many records of each partition the flush callback has returned for
  delivered, broken,
  left,
  start       \* log starts: retention has removed what lies below

vars == <<now, drained, group, memory, committed, member, flushed, delivered, broken, left, start>>

Rule(name) == name \notin Off
Least(S) == CHOOSE x \in S : \A y \in S : x <= y

-----------------------------------------------------------------------------
(* The topic, as metadata describes it from first to last *)

None == 0
\* life: the child's incarnation, None while there is no child. epoch: partition 0's leader epoch, one for each layout.
First == [count |-> Plan[1], version |-> 0, epoch |-> 0, life |-> Plan[1] - 1, lives |-> Plan[1] - 1]
After(s, count) ==
  LET v == s.version + 1 IN
  IF count > s.count
  THEN <<[count |-> 2, version |-> v, epoch |-> v, life |-> s.lives + 1, lives |-> s.lives + 1]>>
  ELSE <<[s EXCEPT !.count = 1, !.version = v],                                   \* marked and sealed
         [s EXCEPT !.count = 1, !.version = v, !.epoch = v],                      \* the survivor takes its keys
         [s EXCEPT !.count = 1, !.version = v, !.epoch = v, !.life = None]>>
RECURSIVE Story(_)
Story(layouts) ==
  IF layouts = 1 THEN <<First>>
  ELSE LET before == Story(layouts - 1) IN before \o After(before[Len(before)], Plan[layouts])
Topic == Story(Len(Plan))
Lives == 1..Topic[Len(Topic)].lives
\* Partition 0, and each incarnation of the child under its own number.
Parts == {0} \cup Lives
Child(s) == {s.life} \ {None}
Marked(s) == IF s.count = 1 THEN Child(s) ELSE {}

\* Record r is written in the layout r - 1.
Records == 1..Len(Plan)
Home(r) == IF Plan[r] = 1 THEN 0 ELSE Topic[CHOOSE i \in DOMAIN Topic : Topic[i].version = r - 1].life
Written(r) == Topic[now].epoch >= r - 1
Of(p, S) == {r \in S : Home(r) = p}
Offset(r) == Cardinality(Of(Home(r), 1..(r - 1)))
RecordAt(p, offset) == CHOOSE r \in Records : Home(r) = p /\ Offset(r) = offset
End(p) == Cardinality({r \in Of(p, Records) : Written(r)})
\* What of partition 0 was written before a child was split off.
Threshold(life) == Cardinality(Of(0, 1..Least(Of(life, Records))))

-----------------------------------------------------------------------------
(* The state *)

Nobody == "nobody"
Unknown == -1
Closed == -1        \* below every leader epoch
\* A member's view of a partition. at: delivered up to; safe: the flush callback returned up to; load: of the callback, told:
\* of which gains it is told, loaded: what was flushed where when it was last called. view: the description last looked at;
\* epoch: the leader epoch in it, before: the cap while the user is not told of gains that no look has shown as marked.
NotMine == [mine |-> FALSE, at |-> 0, safe |-> 0, load |-> "no", told |-> {}, loaded |-> [p \in Parts |-> 0],
            view |-> None, epoch |-> Closed, before |-> Closed, gains |-> {}, announced |-> {}]
Forgotten == [heard |-> {}, silent |-> {}, asked |-> FALSE, wanted |-> {}, reported |-> [p \in Parts |-> Unknown]]

Owners(s, members) ==
  {owner \in [Parts -> members \cup {Nobody}] : \A p \in Parts : owner[p] = Nobody <=> p \notin {0} \cup Child(s)}
Init ==
  /\ now = 1 /\ drained = FALSE
  /\ \E owner \in Owners(Topic[1], Members) :
       group = [owner |-> owner, joined |-> Members, stable |-> TRUE, counted |-> 1, expelled |-> {}]
  /\ memory = Forgotten
  /\ committed = [p \in Parts |-> 0] /\ flushed = [p \in Parts |-> 0]
  /\ member = [m \in Members |-> [synced |-> FALSE, parts |-> [p \in Parts |-> NotMine]]]
  /\ delivered = {} /\ broken = ""
  /\ left = Faults
  /\ start = [p \in Parts |-> 0]

Mine(m, p) == member[m].parts[p]
With(m, p, view) == member' = [member EXCEPT ![m].parts[p] = view]
Present == Members \ group.expelled
Current(m) == group.stable /\ m \in Present /\ member[m].synced
AllHeard == memory.heard \cup memory.silent = Present

\* The group's position, as the coordinator tells it.
Position(p) ==
  LET offset == IF committed[p] = 0 \/ (p # 0 /\ p # Topic[now].life) THEN Unknown ELSE committed[p]
      said == memory.reported[p] IN
  IF ~group.stable THEN Unknown
  ELSE IF group.owner[p] \in memory.heard THEN IF Rule("own_reports") \/ said > offset THEN said ELSE offset
  ELSE IF AllHeard \/ ~Rule("everybody_polled") THEN offset
  ELSE Unknown
\* Who was thrown out is told nothing more.
Told(m, p) == IF m \in Present THEN Position(p) ELSE Unknown
\* A live member alone can tell the position: it owns the partition and polls, or may be about to poll.
AwaitsReport(p) == ~group.stable \/ group.owner[p] \in memory.heard \/ ~AllHeard
\* The start of the log stands for a position where no live member can tell it.
StartPassed(m, p, end) ==
  /\ start[p] >= end
  /\ (m \in Present /\ ~Mine(m, p).mine /\ ~AwaitsReport(p)) \/ ~Rule("owner_counts")
Passed(m, p, end) == Told(m, p) >= end \/ StartPassed(m, p, end)

-----------------------------------------------------------------------------
(* The controller *)

\* Everything up to the survivor's new layout is the subject of module Resize.
IsMerged == Marked(Topic[now]) # {} /\ Topic[now].epoch = Topic[now].version
Resize ==
  /\ now < Len(Topic) /\ ~IsMerged
  /\ now' = now + 1
  /\ UNCHANGED <<drained, group, memory, committed, member, flushed, delivered, broken, left, start>>

\* Who owns the partition is asked how far it is, if it polls.
Asked(p) == IF Rule("owner_asked") /\ group.owner[p] \in memory.heard THEN memory.wanted \cup {p} ELSE memory.wanted
\* The committed offset is at the end. Is what was committed processed?
Question ==
  LET p == Topic[now].life
      wanted == Asked(p)
      \* Somebody may come who keeps order, and nobody knows yet what he waits for.
      unheard == ~AllHeard /\ (memory.heard # {} \/ Rule("poll_awaited")) IN
  /\ IsMerged /\ ~drained /\ committed[p] = End(p)
  /\ memory' = [memory EXCEPT !.wanted = wanted, !.asked = TRUE]
  /\ drained' = (Position(p) = End(p) \/ (Position(p) = Unknown /\ p \notin wanted /\ ~unheard))
  /\ UNCHANGED <<now, group, committed, member, flushed, delivered, broken, left, start>>

\* All records have expired. Is what was delivered of them processed? What was committed does not matter.
QuestionOfEmpty ==
  LET p == Topic[now].life IN
  /\ IsMerged /\ ~drained /\ start[p] = End(p) /\ group.stable
  /\ memory' = [memory EXCEPT !.wanted = Asked(p), !.asked = TRUE]
  /\ drained' = (Position(p) = End(p) \/ ~AwaitsReport(p) \/ ~Rule("owner_counts_removal"))
  /\ UNCHANGED <<now, group, committed, member, flushed, delivered, broken, left, start>>

Remove ==
  /\ IsMerged /\ drained
  /\ now' = now + 1 /\ drained' = FALSE
  /\ UNCHANGED <<group, memory, committed, member, flushed, delivered, broken, left, start>>

-----------------------------------------------------------------------------
(* Generations. Who led the one before, and so what he knows of the topic, does not matter *)

Rebalance ==
  /\ group.stable
  /\ \E i \in 1..now :
       /\ \/ left.rebalance > 0 /\ left' = [left EXCEPT !.rebalance = @ - 1]
          \/ i > group.counted /\ Child(Topic[i]) # Child(Topic[group.counted]) /\ UNCHANGED left
       /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {}, !.counted = i]
  /\ memory' = Forgotten
  /\ UNCHANGED <<now, drained, committed, member, flushed, delivered, broken, start>>
\* A member, it does not matter which, is cut off for longer than its session lasts, and never finds out. What it committed ahead of
\* its flush would be lost.
Victim == CHOOSE m \in Members \ Stock : TRUE
Evict(m) ==
  /\ left.eviction > 0 /\ left' = [left EXCEPT !.eviction = @ - 1]
  /\ Current(m) /\ Present # {m}
  /\ \A p \in Parts : Mine(m, p).mine => committed[p] <= Mine(m, p).safe
  /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {}, !.expelled = @ \cup {m}]
  /\ memory' = Forgotten
  /\ UNCHANGED <<now, drained, committed, member, flushed, delivered, broken, start>>

\* A member has everything flushed and committed before it joins.
Join(m) ==
  /\ ~group.stable /\ m \in Present \ group.joined
  /\ \A p \in Parts : Mine(m, p).safe = Mine(m, p).at /\ Mine(m, p).load # "running"
  /\ \A p \in Parts : Mine(m, p).mine /\ Mine(m, p).at > 0 => committed[p] = Mine(m, p).at
  /\ group' = [group EXCEPT !.joined = @ \cup {m}]
  /\ member' = [member EXCEPT ![m] = [synced |-> FALSE, parts |-> [p \in Parts |-> NotMine]]]
  /\ UNCHANGED <<now, drained, memory, committed, flushed, delivered, broken, left, start>>
Complete ==
  /\ ~group.stable /\ group.joined = Present
  /\ \E owner \in Owners(Topic[group.counted], Present) : group' = [group EXCEPT !.stable = TRUE, !.owner = owner]
  /\ UNCHANGED <<now, drained, memory, committed, member, flushed, delivered, broken, left, start>>
Sync(m) ==
  /\ group.stable /\ m \in Present /\ ~member[m].synced
  /\ member' = [member EXCEPT ![m] = [synced |-> TRUE, parts |-> [p \in Parts |->
       IF group.owner[p] # m THEN NotMine
       ELSE [NotMine EXCEPT !.mine = TRUE, !.at = committed[p], !.safe = committed[p]]]]]
  /\ UNCHANGED <<now, drained, group, memory, committed, flushed, delivered, broken, left, start>>

FailOver ==
  /\ left.failover > 0 /\ left' = [left EXCEPT !.failover = @ - 1]
  /\ memory' = Forgotten
  /\ UNCHANGED <<now, drained, group, committed, member, flushed, delivered, broken, start>>

-----------------------------------------------------------------------------
(* Polls for positions *)

Hears == UNCHANGED <<now, drained, group, committed, member, flushed, delivered, broken, left, start>>
Poll(m) ==
  /\ Current(m) /\ m \notin Stock \cup memory.heard
  /\ memory' = [memory EXCEPT !.heard = @ \cup {m}] /\ Hears
\* Who never polls is waited for as long as his session lasts, once somebody wants to know something.
Silence(m) ==
  /\ m \in (Stock \cap Present) \ memory.silent /\ group.stable /\ memory.asked
  /\ memory' = [memory EXCEPT !.silent = @ \cup {m}] /\ Hears

IsUnopened(m, p) == Mine(m, p).load = "yes" /\ Mine(m, p).gains \cup Mine(m, p).announced = {}
Waits(m, p) ==
  \/ p # 0 /\ p \in Marked(Topic[Mine(m, 0).view]) \cap Mine(m, 0).gains
  \/ p = 0 /\ \E life \in Lives : IsUnopened(m, life) /\ Threshold(life) > 0
Want(m, p) ==
  /\ Current(m) /\ m \in memory.heard /\ p \notin memory.wanted
  /\ Mine(m, 0).view # None \/ p = 0
  /\ Waits(m, p)
  /\ memory' = [memory EXCEPT !.wanted = @ \cup {p}, !.asked = TRUE] /\ Hears

HasPosition(v, p) == IF p = 0 THEN v.epoch # Closed ELSE p \in v.announced
Report(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ Current(m) /\ m \in memory.heard /\ p \in memory.wanted /\ HasPosition(v, p)
  /\ v.safe = v.at /\ committed[p] = v.at /\ memory.reported[p] # v.at
  /\ memory' = [memory EXCEPT !.reported[p] = v.at] /\ Hears

-----------------------------------------------------------------------------
(* A member and one of its partitions *)

Reads == UNCHANGED <<now, drained, group, memory, committed, flushed, delivered, broken, left, start>>

\* The assignment's own load. What the member knew of the topic when it was called is what later looks are compared with.
LoadAssigned(m, p) ==
  /\ Mine(m, p).mine /\ Mine(m, p).load = "no"
  /\ \E i \in IF Rule("look_before_load") THEN 1..now ELSE {None} :
       With(m, p, [Mine(m, p) EXCEPT !.load = "yes", !.loaded = flushed, !.view = i])
  /\ Reads

\* Metadata may be of any age, but never goes back. With a marked partition whose map is not there yet nothing is decided.
MayLook(m, p) == Mine(m, p).mine /\ Mine(m, p).load # "no" /\ m \notin Stock
Unmarked(v) == v.gains \ Marked(Topic[v.view])
\* The newest leader epoch that the user's state was loaded for.
Cap(v) == Least({v.epoch} \cup (IF v.gains = Unmarked(v) THEN {} ELSE {Topic[v.view].version - 1})
                          \cup (IF Unmarked(v) = {} THEN {} ELSE {v.before}))
LookAtSurvivor(m) == \E i \in 1..now :
  LET v == Mine(m, 0)
      s == Topic[i]
      jumped == v.view # None /\ s.version > Topic[v.view].version + 1
      unseen == IF jumped /\ Rule("load_after_jump") THEN {-s.version} ELSE {}
      removed == IF v.view = None \/ ~Rule("load_after_removal") THEN {}
                 ELSE (Child(Topic[v.view]) \ Child(s)) \ v.announced
      gains == v.gains \cup (Marked(s) \ v.announced) \cup unseen \cup removed IN
  /\ MayLook(m, 0) /\ (i > v.view \/ (i = v.view /\ v.epoch = Closed))
  /\ With(m, 0, [v EXCEPT !.view = i, !.epoch = s.epoch, !.gains = gains,
                         !.before = IF gains \subseteq Marked(s) THEN Closed ELSE IF v.view = None THEN v.epoch ELSE Cap(v)])
  /\ Reads
LookAtChild(m, life) ==
  /\ MayLook(m, life) /\ IsUnopened(m, life)
  /\ \E i \in 1..now : Topic[i].life = life
  /\ Threshold(life) = 0 \/ Passed(m, 0, Threshold(life))
  /\ With(m, life, [Mine(m, life) EXCEPT !.gains = {life}])
  /\ Reads

\* What the user may be told of: all that was gained, but for what a marked partition still has.
Limiting(m, v) == IF v.view = None THEN {} ELSE {p \in Marked(Topic[v.view]) \cap v.gains : ~Passed(m, p, End(p))}
Due(m, p) == IF p = 0 THEN Mine(m, 0).gains \ Limiting(m, Mine(m, 0)) ELSE Mine(m, p).gains
\* A child that the member reads, and sees to be removed, or created again as another.
SeenGone(m, life) ==
  LET view == Mine(m, 0).view IN
  Mine(m, life).mine /\ view # None /\ Topic[view].life # life /\ Topic[view].lives >= life
\* What the user has of a child that is gone is flushed before anything else is done.
GoneIsFlushed(m) == \A life \in Lives : SeenGone(m, life) => Mine(m, life).safe = Mine(m, life).at
LoadCalled(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ v.load = "yes" /\ Due(m, p) # {}
  /\ GoneIsFlushed(m) \/ ~Rule("gone_is_flushed")
  /\ With(m, p, [v EXCEPT !.load = "running", !.loaded = flushed, !.told = Due(m, p)])
  /\ Reads
LoadReturned(m, p) ==
  LET v == Mine(m, p)
      told == IF Rule("told_at_call") THEN v.told ELSE Due(m, p) IN
  /\ v.mine /\ v.load = "running"
  /\ With(m, p, [v EXCEPT !.load = "yes", !.told = {}, !.gains = @ \ told, !.announced = @ \cup told])
  /\ Reads

MayDeliver(m, p) ==
  LET v == Mine(m, p) IN
  \/ m \in Stock
  \/ /\ v.load = "yes"
     /\ GoneIsFlushed(m) \/ ~Rule("gone_is_flushed")
     /\ IF p # 0 THEN p \in v.announced /\ ~SeenGone(m, p)
        ELSE v.view # None /\ RecordAt(0, v.at) - 1 <= Cap(v)
Deliver(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ v.at < End(p) /\ v.at >= start[p] /\ MayDeliver(m, p)
  /\ p = 0 \/ p = Topic[now].life \/ m \notin Present  \* fetched before it was removed
  /\ LET r == RecordAt(p, v.at)
         older == {a \in 1..(r - 1) : Home(a) # p}
         own(a) == Mine(m, Home(a)) IN
     /\ delivered' = IF m \in Present THEN delivered \cup {r} ELSE delivered
     /\ broken' =
          IF \E a \in older : own(a).mine /\ own(a).safe <= Offset(a) /\ Offset(a) < own(a).at THEN "its own older record is not flushed"
          ELSE IF m \notin Present THEN broken
          ELSE IF \E a \in older : a \notin delivered THEN "an older record was not delivered"
          ELSE IF \E a \in older : flushed[Home(a)] <= Offset(a) THEN "an older record's flush has not returned"
          ELSE IF \E a \in older : v.loaded[Home(a)] <= Offset(a) THEN "loaded before the flush returned, or never"
          ELSE broken
  /\ With(m, p, [v EXCEPT !.at = @ + 1])
  /\ UNCHANGED <<now, drained, group, memory, committed, flushed, left, start>>

Flush(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ v.safe < v.at
  /\ With(m, p, [v EXCEPT !.safe = v.at])
  /\ flushed' = [flushed EXCEPT ![p] = IF v.at > @ THEN v.at ELSE @]
  /\ UNCHANGED <<now, drained, group, memory, committed, delivered, broken, left, start>>

\* Retention removes what was delivered, whether it is flushed or not. (What it removes unread is lost, with any rules.)
Expire(p) ==
  /\ left.expiry > 0 /\ left' = [left EXCEPT !.expiry = @ - 1]
  /\ p = 0 \/ p = Topic[now].life
  /\ \E o \in (start[p] + 1)..End(p) :
       /\ \A r \in Of(p, Records) : Offset(r) < o => r \in delivered
       /\ start' = [start EXCEPT ![p] = o]
  /\ UNCHANGED <<now, drained, group, memory, committed, member, flushed, delivered, broken>>
\* A member finds that its position is out of range.
Skip(m, p) ==
  /\ Mine(m, p).mine /\ Mine(m, p).at < start[p]
  /\ With(m, p, [Mine(m, p) EXCEPT !.at = start[p]])
  /\ Reads

\* Of what was delivered, whether it is flushed or not.
Commit(m, p) ==
  /\ m \in Present /\ Mine(m, p).mine /\ committed[p] < Mine(m, p).at
  /\ committed' = [committed EXCEPT ![p] = Mine(m, p).at]
  /\ UNCHANGED <<now, drained, group, memory, member, flushed, delivered, broken, left, start>>

-----------------------------------------------------------------------------
OfMember(m) ==
  \/ Join(m) \/ Sync(m) \/ Poll(m) \/ Silence(m) \/ LookAtSurvivor(m)
  \/ \E life \in Lives : LookAtChild(m, life)
  \/ \E p \in Parts :
       \/ Want(m, p) \/ Report(m, p) \/ LoadAssigned(m, p) \/ LoadCalled(m, p) \/ LoadReturned(m, p)
       \/ Skip(m, p) \/ Deliver(m, p) \/ Flush(m, p) \/ Commit(m, p)
Next ==
  \/ Resize \/ Question \/ QuestionOfEmpty \/ Remove \/ Rebalance \/ Complete \/ FailOver \/ Evict(Victim)
  \/ \E p \in Parts : Expire(p)
  \/ \E m \in Members : OfMember(m)

Spec == Init /\ [][Next]_vars
Fair ==
  /\ Spec
  /\ WF_vars(Resize) /\ WF_vars(Question) /\ WF_vars(QuestionOfEmpty) /\ WF_vars(Remove) /\ WF_vars(Rebalance) /\ WF_vars(Complete)
  /\ \A m \in Members :
       /\ WF_vars(Join(m)) /\ WF_vars(Sync(m)) /\ WF_vars(Poll(m)) /\ WF_vars(Silence(m)) /\ WF_vars(LookAtSurvivor(m))
       /\ \A p \in Parts :
            /\ WF_vars(Want(m, p)) /\ WF_vars(Report(m, p)) /\ WF_vars(LoadAssigned(m, p)) /\ WF_vars(LoadCalled(m, p))
            /\ WF_vars(LoadReturned(m, p)) /\ WF_vars(Skip(m, p)) /\ WF_vars(Deliver(m, p)) /\ WF_vars(Flush(m, p)) /\ WF_vars(Commit(m, p))
            /\ p # 0 => WF_vars(LookAtChild(m, p))

-----------------------------------------------------------------------------
(* Properties *)

\* Older delivered -> its flush returned -> the newer one's load called and returned -> newer delivered.
Promise == broken = ""
\* Nothing is removed whose owner has not flushed it.
FlushedFirst == \A life \in 1..Topic[now].lives : life # Topic[now].life => flushed[life] = Cardinality(Of(life, Records))
\* Every marked partition is removed some day, and all is delivered.
AllRemoved == <>[](now = Len(Topic) /\ \A r \in Records : r \in delivered)
=============================================================================
