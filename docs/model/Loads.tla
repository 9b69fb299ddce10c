-------------------------------- MODULE Loads --------------------------------
(***************************************************************************)
(* A consumer group reads a topic that is resized by the rule of module    *)
(* Lineage: generations, commits, reports of positions, and the load by    *)
(* leader epochs. Members are evicted while their callbacks run. They know *)
(* the topic from their last look. A resize is one step here: Lineage      *)
(* shows that its steps keep the order. README.md lists the omissions.     *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Initial,    \* initial_partition_count
  Ids,        \* the largest number of partitions
  Start,      \* the count at the beginning
  Script,     \* the events of the topic, in this order: <<"write", key>>, <<"count", n>>, <<"marker", p>> (an offset
              \* without a record), <<"recreate", n>> (the topic is deleted and created again with n partitions)
  Members,
  Faults,     \* how many faults of each kind: [rebalance, eviction, election, seek, failover, ahead, late]
  Off         \* the rules that are switched off

VARIABLES
  played,     \* the number of events of the script that have happened
  count,      \* the partition count
  part,       \* by partition: whether it exists, its leader epoch, its lineage, its floor, the last epoch of a removed incarnation
  life,       \* the number of times that the topic was created again
  log, start, \* logs and log starts; the offsets continue when a partition is created again
  group,      \* the owner of each partition, the members that have joined, the partitions at the start of the rebalance, the evicted members
  reported,   \* the positions that owners reported in this generation
  committed,
  member,
  flushed,    \* the offset up to which the flush callback has returned; each seek adds 100, see Counted
  seeks,      \* the number of the user's seeks back in each partition
  delivered, broken,
  left        \* faults that may still happen

topic == <<played, count, part, life, log, start>>
user == <<flushed, seeks, delivered, broken>>
vars == <<topic, group, reported, committed, member, user, left>>

Rule(name) == name \notin Off
Parts == 0..(Ids - 1)
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x
Smallest(S) == CHOOSE x \in S : \A y \in S : x <= y

Base(n) == CHOOSE m \in {Initial * 2^l : l \in 0..4} : m <= n /\ n < 2 * m
Place(hash, n) == IF hash % Base(n) < n - Base(n) THEN hash % (2 * Base(n)) ELSE hash % Base(n)
RECURSIVE Ancestors(_)
Ancestors(p) == IF p < Initial THEN {} ELSE {p - Base(p)} \cup Ancestors(p - Base(p))
AncestorBelow(p, n) == Largest({a \in Ancestors(p) : a < n})

Nobody == "nobody"
Unknown == -1
NoRecord == 0
NoCall == [limit |-> -1, floor |-> -1, flushed |-> <<>>]
\* A member's view of a partition. at: the next offset. safe: the flush callback has returned up to here. sure: its own commits were
\* accepted up to here. from: the offset at which its owner began. limit, floor, entries: cap, floor and epochs of the lineage at the
\* last look. once: a load has returned since the assignment. covers, spared, loaded: cap, floor and flushed offsets at the call of
\* that load. call: the load that runs. life: the topic's life when the partition was assigned, or when the member noticed a newer
\* topic. said: the position that was reported last, if a position is reported only once. rewinds: the coordinator's last answer of
\* the number of seeks back in each partition. looked: the coordinator has answered since the last seek, and the partition was not
\* removed meanwhile (only for the properties). late: an answer that is still on its way. overtaken: the member has used
\* an answer that was made after this late answer.
NoAnswer == [positions |-> <<>>, rewinds |-> <<>>]
NotMine == [mine |-> FALSE, at |-> 0, safe |-> 0, sure |-> 0, from |-> 0, limit |-> -1, floor |-> -1, entries |-> {},
            once |-> FALSE, covers |-> -1, spared |-> -1, loaded |-> <<>>, call |-> NoCall, life |-> 0, said |-> -1,
            rewinds |-> [q \in Parts |-> 0], looked |-> TRUE, late |-> NoAnswer, overtaken |-> FALSE]
There == {p \in Parts : part[p].there}
Silent == [p \in Parts |-> Unknown]
Owners(parts, members) ==
  {owner \in [Parts -> members \cup {Nobody}] : \A p \in Parts : owner[p] = Nobody <=> p \notin parts}

New(n) == [p \in Parts |-> [there |-> p < n, epoch |-> IF p < n THEN 0 ELSE -1, lineage |-> {}, floor |-> -1, gone |-> -1]]

Init ==
  /\ played = 0 /\ count = Start /\ life = 0
  /\ part = New(Start)
  /\ log = [p \in Parts |-> <<>>] /\ start = [p \in Parts |-> 0]
  /\ \E owner \in Owners(0..(Start - 1), Members) :
       group = [owner |-> owner, joined |-> Members, stable |-> TRUE, parts |-> 0..(Start - 1), evicted |-> {}]
  /\ reported = Silent /\ committed = [p \in Parts |-> 0]
  /\ member = [m \in Members |-> [synced |-> FALSE, parts |-> [p \in Parts |-> NotMine]]]
  /\ flushed = [p \in Parts |-> 0] /\ seeks = [p \in Parts |-> 0]
  /\ delivered = {} /\ broken = ""
  /\ left = Faults

Mine(m, p) == member[m].parts[p]
With(m, p, view) == member' = [member EXCEPT ![m].parts[p] = view]
Present == Members \ group.evicted
Heard(m, p) == Mine(m, p).life = life      \* its view is of the topic that was created last
Current(m) == group.stable /\ m \in Present /\ member[m].synced
End(p) == Len(log[p])
Hole(p, i) == i <= start[p] \/ log[p][i].key = NoRecord
OnlyHoles(p, from, to) == \A i \in (from + 1)..to : Hole(p, i)

-----------------------------------------------------------------------------
(* The topic *)

Moves(old, new) ==
  IF new > old THEN {<<AncestorBelow(p, old), p>> : p \in old..(new - 1)}
  ELSE {<<p, AncestorBelow(p, new)>> : p \in new..(old - 1)}
Over(x) == part[x[2]].gone >= x[3]
Pruned(z) == [z EXCEPT !.lineage = {x \in @ : ~Over(x)},
                       !.floor = Largest({@} \cup {x[1] : x \in {y \in z.lineage : Over(y)}})]
Bumped(z) == [Pruned(z) EXCEPT !.epoch = @ + 1]
Resized(new) ==
  LET moves == Moves(count, new)
      gained(p) == {m[1] : m \in {x \in moves : x[2] = p}}
      concerned == 0..(new - 1) \cup {m[1] : m \in moves}
      z(p) == [Bumped(part[p]) EXCEPT !.there = TRUE, !.lineage = @ \cup {<<part[p].epoch + 1, q, part[q].epoch>> : q \in gained(p)}]
  IN [p \in Parts |-> IF p \in concerned THEN z(p) ELSE part[p]]

Number(k) == Cardinality({<<p, i>> \in Parts \X (1..Len(Script)) : i <= End(p) /\ log[p][i].key = k}) + 1
Appended(p, k) == [log EXCEPT ![p] = Append(@, [key |-> k, number |-> IF k = NoRecord THEN 0 ELSE Number(k), epoch |-> part[p].epoch])]
\* A commit of the deleted topic does not count for the new topic, whose epochs and offsets start again.
Recreate(n) ==
  /\ count' = n /\ part' = New(n) /\ life' = life + 1
  /\ log' = [p \in Parts |-> <<>>] /\ start' = [p \in Parts |-> 0]
  /\ committed' = IF Rule("commit_incarnation") THEN [p \in Parts |-> 0] ELSE committed
  /\ reported' = Silent
  /\ flushed' = [p \in Parts |-> 0]
  /\ member' = [m \in Members |-> [member[m] EXCEPT !.parts = [p \in Parts |->
       [member[m].parts[p] EXCEPT !.loaded = [q \in DOMAIN @ |-> 0]]]]]      \* only for the properties
  /\ UNCHANGED <<group, seeks, delivered, broken, left>>
Play ==
  /\ played < Len(Script) /\ played' = played + 1
  /\ LET step == Script[played + 1] IN
     IF step[1] = "recreate" THEN Recreate(step[2])
     ELSE /\ CASE step[1] = "count" -> count' = step[2] /\ part' = Resized(step[2]) /\ UNCHANGED log
               [] step[1] = "write" -> log' = Appended(Place(step[2], count), step[2]) /\ UNCHANGED <<count, part>>
               [] OTHER -> /\ log' = IF part[step[2]].there THEN Appended(step[2], NoRecord) ELSE log
                           /\ UNCHANGED <<count, part>>
          /\ UNCHANGED <<life, start, group, reported, committed, member, user, left>>

\* A bump for another reason prunes the lineage too.
Election(p) ==
  /\ left.election > 0 /\ left' = [left EXCEPT !.election = @ - 1]
  /\ part[p].there /\ part' = [part EXCEPT ![p] = Bumped(@)]
  /\ UNCHANGED <<played, count, life, log, start, group, reported, committed, member, user>>

\* The group's position in the coordinator's answer: the owner's report in this generation, or without an owner the commit.
Position(p) ==
  IF ~group.stable THEN Unknown
  ELSE IF group.owner[p] # Nobody THEN reported[p]
  ELSE Largest({committed[p], start[p]})
Remove(p) ==
  /\ part[p].there /\ p >= count /\ \A q \in There : q <= p
  /\ Position(p) = End(p)
  /\ part' = [part EXCEPT ![p] = [@ EXCEPT !.there = FALSE, !.lineage = {}, !.floor = -1, !.gone = part[p].epoch]]
  /\ start' = [start EXCEPT ![p] = End(p)]
  /\ UNCHANGED <<played, count, life, log, group, reported, committed, member, user, left>>

-----------------------------------------------------------------------------
(* Generations *)

Rebalance ==
  /\ group.stable
  /\ \/ left.rebalance > 0 /\ left' = [left EXCEPT !.rebalance = @ - 1]
     \/ group.parts # There /\ UNCHANGED left
  /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {}, !.parts = There]
  /\ reported' = Silent
  /\ UNCHANGED <<topic, committed, member, user>>
\* A member is cut off for longer than its session timeout, at any step, and does not notice. It does not matter which member.
Victim == CHOOSE m \in Members : TRUE
Evict(m) ==
  /\ left.eviction > 0 /\ left' = [left EXCEPT !.eviction = @ - 1]
  /\ Current(m) /\ Present # {m}
  /\ \A p \in Parts : Mine(m, p).mine => committed[p] <= Mine(m, p).safe      \* otherwise its unflushed work would be lost
  /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {}, !.parts = There, !.evicted = @ \cup {m}]
  /\ reported' = Silent
  /\ UNCHANGED <<topic, committed, member, user>>

\* The next coordinator has the commits and the generation. It assumes no position: it waits until the owner reports again.
FailOver ==
  /\ left.failover > 0 /\ left' = [left EXCEPT !.failover = @ - 1]
  /\ reported' = IF Rule("nothing_guessed") THEN Silent ELSE committed
  /\ UNCHANGED <<topic, group, committed, member, user>>

\* A member's state of a partition that it gives up: nothing, or without "reload" the loaded state with its later changes.
Kept(m, p) ==
  LET v == Mine(m, p) IN
  IF Rule("reload") \/ ~v.once THEN NotMine
  ELSE [NotMine EXCEPT !.once = TRUE, !.covers = v.covers, !.spared = v.spared,
                       !.loaded = IF v.mine THEN [v.loaded EXCEPT ![p] = v.safe] ELSE v.loaded]
GivenUp(m) == [member EXCEPT ![m] = [synced |-> FALSE, parts |-> [p \in Parts |->
  [Kept(m, p) EXCEPT !.call = IF Rule("load_awaited") THEN NoCall ELSE Mine(m, p).call]]]]
CallbacksReturned(m) == \A p \in Parts :
  Mine(m, p).safe = Mine(m, p).at /\ (Rule("load_awaited") => Mine(m, p).call = NoCall)
Join(m) ==
  /\ ~group.stable /\ m \in Present \ group.joined
  /\ CallbacksReturned(m)
  /\ \A p \in Parts : Mine(m, p).mine /\ Heard(m, p) => OnlyHoles(p, committed[p], Mine(m, p).at)
  /\ group' = [group EXCEPT !.joined = @ \cup {m}]
  /\ member' = GivenUp(m)
  /\ UNCHANGED <<topic, reported, committed, user, left>>
\* An evicted member notices the eviction: one more rebalance. Its uncommitted work is lost.
ComeBack(m) ==
  /\ m \in group.evicted /\ group.stable /\ CallbacksReturned(m)
  /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {m}, !.parts = There, !.evicted = @ \ {m}]
  /\ reported' = Silent
  /\ member' = GivenUp(m)
  /\ UNCHANGED <<topic, committed, user, left>>
Complete ==
  /\ ~group.stable /\ group.joined = Present
  /\ \E owner \in Owners(group.parts, Present) : group' = [group EXCEPT !.stable = TRUE, !.owner = owner]
  /\ UNCHANGED <<topic, reported, committed, member, user, left>>
Sync(m) ==
  /\ group.stable /\ m \in Present /\ ~member[m].synced
  /\ member' = [member EXCEPT ![m] = [synced |-> TRUE, parts |-> [p \in Parts |->
       IF group.owner[p] # m THEN Mine(m, p)
       ELSE [Mine(m, p) EXCEPT !.mine = TRUE, !.at = committed[p], !.safe = committed[p], !.sure = committed[p],
                               !.from = committed[p], !.life = life]]]]
  /\ UNCHANGED <<topic, group, reported, committed, user, left>>

-----------------------------------------------------------------------------
(* A member and one of its partitions *)

Reads == UNCHANGED <<topic, group, reported, committed, user, left>>
EndOf(q, f) == Cardinality({i \in DOMAIN log[q] : log[q][i].epoch <= f})
\* positions: the coordinator's answer. unknown: the result if it answers no position. back: partitions whose position was lower meanwhile.
RECURSIVE Satisfied(_, _, _, _, _)
Satisfied(positions, q, f, unknown, back) ==
  \/ part[q].gone >= f
  \/ /\ IF q \in back THEN EndOf(q, f) = 0 ELSE IF positions[q] = Unknown THEN unknown ELSE positions[q] >= EndOf(q, f)
     /\ \A x \in part[q].lineage : x[1] <= f => Satisfied(positions, x[2], x[3], unknown, back)
Limit(positions, p, unknown, back) ==
  LET held == {x[1] : x \in {z \in part[p].lineage : ~Satisfied(positions, z[2], z[3], unknown, back)}} IN
  IF held = {} THEN part[p].epoch ELSE Smallest(held) - 1
IsAnswered(m) == m \in Present /\ group.stable
Answer == [positions |-> [q \in Parts |-> Position(q)], rewinds |-> seeks]
\* The member's view after an answer, or after a look at the topic alone (NoAnswer). The limit never falls, unless the coordinator answers
\* a lower position, or that a position was lower meanwhile. Then a finished or running load no longer counts. The coordinator stores
\* with each commit how often a commit was lower than the previous one: once for each seek.
Seen(v, p, answer) ==
  LET isAnswer == answer # NoAnswer
      positions == IF isAnswer THEN answer.positions ELSE Silent
      rewinds == IF isAnswer /\ Rule("rewinds_counted") THEN answer.rewinds ELSE v.rewinds
      back == {q \in Parts : rewinds[q] # v.rewinds[q]}
      least == Limit(positions, p, FALSE, {})
      most == Limit(positions, p, TRUE, back)
      kept == IF Rule("taken_back") THEN Smallest({v.limit, most}) ELSE v.limit
      limit == Largest({kept, least})
      covered(e) == IF Rule("load_taken_back") THEN Smallest({e, kept}) ELSE e
      called == IF v.call = NoCall \/ ~Rule("running_load_taken_back") THEN v.call ELSE [v.call EXCEPT !.limit = covered(@)]
      isRecent == isAnswer /\ answer.rewinds = seeks /\ \A q \in Parts : seeks[q] = 0 \/ part[q].there IN
  [v EXCEPT !.limit = limit, !.floor = part[p].floor, !.entries = {x[1] : x \in part[p].lineage},
            !.covers = covered(@), !.call = called, !.rewinds = rewinds, !.looked = @ \/ isRecent]
Looks(m, p) == Mine(m, p).mine /\ Heard(m, p) /\ part[p].there
\* A poll whose answer arrives at once.
Look(m, p) ==
  LET v == Mine(m, p)
      seen == IF IsAnswered(m) THEN [Seen(v, p, Answer) EXCEPT !.overtaken = v.late # NoAnswer] ELSE Seen(v, p, NoAnswer) IN
  /\ Looks(m, p) /\ v # seen
  /\ With(m, p, seen)
  /\ Reads
\* A poll over the member's other connection, whose answer arrives later.
AnswerLate(m, p) ==
  /\ left.late > 0 /\ left' = [left EXCEPT !.late = @ - 1]
  /\ Looks(m, p) /\ IsAnswered(m) /\ Mine(m, p).late = NoAnswer
  /\ With(m, p, [Mine(m, p) EXCEPT !.late = Answer, !.overtaken = FALSE])
  /\ UNCHANGED <<topic, group, reported, committed, user>>
\* The late answer arrives. The member drops it if the member has used an answer that was made later.
LookLate(m, p) ==
  LET v == [Mine(m, p) EXCEPT !.late = NoAnswer, !.overtaken = FALSE] IN
  /\ Looks(m, p) /\ Mine(m, p).late # NoAnswer
  /\ With(m, p, IF Rule("newest_answer") /\ Mine(m, p).overtaken THEN v ELSE Seen(v, p, Mine(m, p).late))
  /\ Reads

\* The member notices that the topic was created again, and drops its state of the deleted topic.
Hear(m, p) ==
  LET v == Mine(m, p)  kept == IF Rule("topic_forgotten") THEN NotMine ELSE v IN
  /\ v.mine /\ ~Heard(m, p) /\ v.safe = v.at
  /\ With(m, p, [kept EXCEPT !.mine = TRUE, !.life = life, !.at = committed[p], !.safe = committed[p], !.sure = committed[p],
                             !.from = committed[p], !.said = -1])
  /\ Reads

\* A member passes offsets without a record, whether the gate is open or not.
Pass(p, i) == IF i > End(p) THEN i ELSE Smallest({j \in i..End(p) : j = End(p) \/ ~Hole(p, j + 1)})
Skip(m, p) ==
  LET v == Mine(m, p)  next == Pass(p, v.at) IN
  /\ v.mine /\ Heard(m, p) /\ next > v.at
  /\ IF Rule("holes_are_passed") \/ next = End(p) THEN TRUE ELSE log[p][next + 1].epoch <= v.limit
  /\ With(m, p, [v EXCEPT !.at = next, !.safe = IF @ = v.at THEN next ELSE @])
  /\ Reads

\* The user's state of a removed partition is flushed before any other step.
GoneIsFlushed(m) == \A q \in Parts :
  Mine(m, q).mine /\ Heard(m, q) /\ Mine(m, q).safe < Mine(m, q).at => part[q].gone < log[q][Mine(m, q).at].epoch
Opens(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ Heard(m, p) /\ v.at < End(p) /\ ~Hole(p, v.at + 1) /\ log[p][v.at + 1].epoch <= v.limit /\ v.call = NoCall
  /\ GoneIsFlushed(m) \/ ~Rule("gone_is_flushed")
\* A load is due if the floor is above the cap and the floor at the last load's call, or if the next batch is above a newer entry.
Due(v, epoch) ==
  \/ ~v.once
  \/ Rule("floor") /\ v.floor > Largest({v.covers, v.spared})
  \/ Rule("entries") /\ \E e \in v.entries : v.covers < e /\ e <= epoch
Load(m, p) ==
  LET v == Mine(m, p) IN
  /\ Opens(m, p) /\ Due(v, log[p][v.at + 1].epoch)
  /\ With(m, p, [v EXCEPT !.call = [limit |-> v.limit, floor |-> v.floor, flushed |-> flushed]])
  /\ Reads
Loaded(m, p) ==
  LET v == Mine(m, p)
      limit == IF Rule("load_at_call") THEN Smallest({v.call.limit, v.limit}) ELSE v.limit    \* the limit may have fallen since the call
      floor == IF Rule("load_at_call") THEN v.call.floor ELSE v.floor IN
  /\ v.call # NoCall
  /\ With(m, p, [v EXCEPT !.call = NoCall, !.once = TRUE, !.covers = limit, !.spared = floor, !.loaded = v.call.flushed])
  /\ Reads

\* The offset up to which the group has processed a partition.
Through(q) ==
  LET owner == group.owner[q] IN
  IF owner # Nobody /\ owner \in Present /\ Mine(owner, q).mine THEN Mine(owner, q).safe ELSE committed[q]
Counted(q, offset) == offset + 100 * seeks[q]
Deliver(m, p) ==
  LET v == Mine(m, p)
      r == log[p][v.at + 1]
      older == {<<q, i>> \in Parts \X (1..Len(Script)) : i <= End(q) /\ log[q][i].key = r.key /\ log[q][i].number < r.number}
      others == {a \in older : a[1] # p}
      ofOwnersBefore == {a \in older : a[1] = p /\ a[2] <= v.from}
      newer == {d \in delivered : d[1] = r.key /\ d[2] > r.number /\ d[3] # p}
      own(a) == Mine(m, a[1])
      isSaid(a) == seeks[a[1]] = 0 \/ v.looked
      IsDelivered(a) == \E d \in delivered : d[1] = r.key /\ d[2] = log[a[1]][a[2]].number IN
  /\ Opens(m, p) /\ ~Due(v, r.epoch)
  /\ delivered' = IF m \in Present THEN delivered \cup {<<r.key, r.number, p>>} ELSE delivered
  /\ broken' =
       IF \E a \in others : isSaid(a) /\ own(a).mine /\ Heard(m, a[1]) /\ own(a).safe < a[2] /\ a[2] <= own(a).at THEN "its own older record is not flushed"
       ELSE IF m \notin Present THEN broken
       ELSE IF \E a \in others : ~IsDelivered(a) THEN "an older record was not delivered"
       ELSE IF \E a \in others : isSaid(a) /\ flushed[a[1]] < Counted(a[1], a[2]) THEN "an older record's flush has not returned"
       ELSE IF \E a \in others : isSaid(a) /\ seeks[a[1]] > 0 /\ Through(a[1]) < a[2] THEN "an older record is read again"
       ELSE IF \E a \in others \cup ofOwnersBefore : isSaid(a) /\ v.loaded[a[1]] < Counted(a[1], a[2])
       THEN "loaded before the flush returned, or never"
       ELSE IF newer # {} /\ seeks[p] = 0 THEN "a newer record came before"
       ELSE broken
  /\ With(m, p, [v EXCEPT !.at = @ + 1])
  /\ UNCHANGED <<topic, group, reported, committed, flushed, seeks, left>>

\* The flush callback returns, perhaps long after the eviction of its member.
Flush(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ v.safe < v.at
  /\ With(m, p, [v EXCEPT !.safe = v.at])
  /\ flushed' = [flushed EXCEPT ![p] = IF ~Heard(m, p) THEN @ ELSE IF m \in Present \/ seeks[p] = 0 THEN Largest({@, Counted(p, v.at)}) ELSE @]
  /\ UNCHANGED <<topic, group, reported, committed, seeks, delivered, broken, left>>

Commit(m, p) ==
  LET v == Mine(m, p) IN
  /\ m \in Present \/ ~Rule("commits_fenced")
  /\ v.mine /\ v.sure < v.safe /\ Heard(m, p) /\ ~OnlyHoles(p, v.sure, v.safe)
  /\ committed' = [committed EXCEPT ![p] = v.safe]
  /\ With(m, p, [v EXCEPT !.sure = v.safe])
  \* A record below a commit counts as delivered, also by an evicted member.
  /\ delivered' = IF m \in Present THEN delivered
                  ELSE delivered \cup {<<log[p][i].key, log[p][i].number, p>> : i \in {j \in 1..v.safe : log[p][j].key # NoRecord}}
  /\ UNCHANGED <<topic, group, reported, flushed, seeks, broken, left>>

\* This commit runs ahead of the flush callback, as a periodic commit does.
CommitAhead(m, p) ==
  LET v == Mine(m, p) IN
  /\ left.ahead > 0 /\ left' = [left EXCEPT !.ahead = @ - 1]
  /\ Current(m) /\ v.mine /\ v.safe < v.at /\ Heard(m, p)
  /\ committed' = [committed EXCEPT ![p] = v.at]
  /\ With(m, p, [v EXCEPT !.sure = v.at])
  /\ UNCHANGED <<topic, group, reported, user>>

\* An owner reports the position of a partition that other partitions may wait for: after the commit, or without one if there was nothing to commit.
IsWanted(p) == p >= count \/ \E q \in Parts : \E x \in part[q].lineage : x[2] = p
Report(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ v.safe = v.at /\ Heard(m, p) /\ IsWanted(p) /\ group.stable
  /\ Current(m) \/ ~Rule("positions_fenced")
  /\ CASE ~Rule("commit_first") -> TRUE
       [] ~Rule("said_without_commit") -> v.sure = v.at
       [] OTHER -> OnlyHoles(p, v.sure, v.at)
  /\ reported[p] # v.at /\ reported' = [reported EXCEPT ![p] = v.at]
  /\ IF Rule("said_again") THEN UNCHANGED member ELSE v.said # v.at /\ With(m, p, [v EXCEPT !.said = v.at])
  /\ UNCHANGED <<topic, group, committed, user, left>>

\* The user seeks back: the position and the commit are lower at once.
Seek(m, p) ==
  /\ left.seek > 0 /\ left' = [left EXCEPT !.seek = @ - 1]
  /\ Current(m) /\ Mine(m, p).mine /\ Mine(m, p).safe = Mine(m, p).at /\ ~OnlyHoles(p, 0, Mine(m, p).at)
  /\ member' = [n \in Members |-> [member[n] EXCEPT !.parts = [q \in Parts |->
       IF n = m /\ q = p THEN [Mine(m, p) EXCEPT !.at = 0, !.safe = 0, !.sure = 0, !.from = 0, !.looked = FALSE]
       ELSE [Mine(n, q) EXCEPT !.looked = FALSE]]]]
  /\ committed' = [committed EXCEPT ![p] = 0]
  /\ reported' = [reported EXCEPT ![p] = IF @ = Unknown THEN @ ELSE 0]
  /\ seeks' = [seeks EXCEPT ![p] = @ + 1]
  /\ flushed' = [flushed EXCEPT ![p] = 100 * seeks'[p]]
  /\ UNCHANGED <<topic, group, delivered, broken>>

-----------------------------------------------------------------------------
Reading == \E m \in Members : \E p \in Parts :
  Look(m, p) \/ LookLate(m, p) \/ Hear(m, p) \/ Skip(m, p) \/ Load(m, p) \/ Loaded(m, p) \/ Deliver(m, p) \/ Flush(m, p) \/ Commit(m, p) \/ Report(m, p)
Work ==
  \/ Play \/ Rebalance \/ Complete \/ \E m \in Members : Join(m) \/ Sync(m)
  \/ \E p \in Parts : Remove(p)
  \/ Reading
Bad ==
  \/ Evict(Victim) \/ FailOver \/ \E m \in Members : ComeBack(m)
  \/ \E p \in Parts : Election(p) \/ \E m \in Members : Seek(m, p) \/ CommitAhead(m, p) \/ AnswerLate(m, p)
Next == Work \/ Bad
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Properties *)

\* Older delivered -> its flush returned -> the newer one's load called and returned -> newer delivered.
Promise == broken = ""
\* The coordinator answers no position that the partition's owner has not flushed.
TruePositions == \A p \in Parts : group.stable /\ group.owner[p] # Nobody /\ reported[p] # Unknown =>
  LET v == Mine(group.owner[p], p) IN v.mine /\ v.life = life => reported[p] <= v.safe
AllDelivered == \A p \in Parts : \A i \in DOMAIN log[p] :
  log[p][i].key = NoRecord \/ <<log[p][i].key, log[p][i].number, p>> \in delivered
\* When no step is possible, the script is over, all records are delivered, and all marked partitions are removed.
NoHang == ~ENABLED Work => AllDelivered /\ There = 0..(count - 1)
=============================================================================
