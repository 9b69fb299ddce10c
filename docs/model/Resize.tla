------------------------------- MODULE Resize -------------------------------
(***************************************************************************)
(* One topic grows and shrinks: the controller's writes and requests, the  *)
(* leaders that apply them, a producer, and one reader per partition.      *)
(* Every write and every request is a separate step, and a crash may come  *)
(* between any two steps. README.md lists the omissions.                   *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Initial,    \* initial_partition_count
  Ids,        \* the largest number of partitions
  Start,      \* the count at the beginning
  Plan,       \* the counts an administrator asks for, in this order
  Keys,       \* keys, each given by its hash
  Records,    \* records per key
  Faults,     \* how many faults of each kind: [election, unclean, tail, controller, reader, lost, late]
  Losses,     \* the kinds of a "lost" produce request: "request", "answer", "delay"
  History,    \* clients may have metadata of any age, not only the newest
  OldMaps,    \* a broker may answer 25301 from a znode of any age
  Off         \* the rules that are switched off

VARIABLES
  topic,      \* topic znode: undeleted count, partitions that exist, layout version
  part,       \* partition znodes
  answered,   \* the controller's memory: partitions whose leader has answered the stored pair
  host,       \* the leader's replica of each partition. led: the epochs in which this replica led, with their layouts;
              \* followed: the last epoch in which all in-sync replicas are known to have followed
  underway,   \* controller requests that may still arrive
  asked,      \* the number of resizes of the plan that were asked for
  producer, strays, accepted,
  reader, delivered, broken,
  seen, maps, \* metadata and partition znodes of the past
  left        \* faults that may still happen

clients == <<producer, strays, accepted, reader, delivered, broken>>
past == <<seen, maps>>
vars == <<topic, part, answered, host, underway, asked, clients, past, left>>

Rule(name) == name \notin Off
Parts == 0..(Ids - 1)
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x
Smallest(S) == CHOOSE x \in S : \A y \in S : x <= y

Nobody == -1          \* no ancestor is named
Unknown == -1         \* the epoch is not written yet
NoEntry == <<Nobody, Unknown>>
Endless == 99

-----------------------------------------------------------------------------
(* Placement: linear hashing, and the tree of partitions that it defines *)

Base(count) == CHOOSE m \in {Initial * 2^l : l \in 0..4} : m <= count /\ count < 2 * m
Place(hash, count) ==
  IF hash % Base(count) < count - Base(count) THEN hash % (2 * Base(count)) ELSE hash % Base(count)
RECURSIVE Ancestors(_)
Ancestors(p) == IF p < Initial THEN {} ELSE {p - Base(p)} \cup Ancestors(p - Base(p))
AncestorBelow(p, count) == Largest({a \in Ancestors(p) : a < count})

\* When the count changes, a key moves only between a partition and its nearest surviving ancestor.
ASSUME \A hash \in 0..15 : \A small \in Initial..Ids : \A large \in small..Ids :
         LET from == Place(hash, small)  to == Place(hash, large) IN
         to # from => to >= small /\ AncestorBelow(to, small) = from

-----------------------------------------------------------------------------
(* Layouts, znodes and metadata *)

Now == <<topic.count, topic.version>>
Next2 == <<topic.total, topic.version + 1>>                      \* the layout after a grow
Same(a, b) == a[1] = b[1] /\ (Rule("layout_version") => a[2] = b[2])

Led(p) == part[p].stage \in {"led", "leaving"}
New == {p \in Parts : topic.count <= p /\ p < topic.total /\ ~Led(p)}
Marked == {p \in Parts : topic.count <= p /\ p < topic.total /\ Led(p)}
Unled == {p \in Parts : p < topic.count /\ ~Led(p)}
Old == {p \in Parts : p < topic.count /\ Led(p)}

\* One snapshot, as in UpdateMetadata. It has no partition that a grow has not counted yet.
Newest ==
  [layout |-> Now, total |-> IF New = {} THEN topic.total ELSE topic.count,
   epoch |-> [p \in Parts |-> part[p].epoch],
   incarnation |-> [p \in Parts |-> part[p].incarnation]]
\* After a write clients may have the new state, and with History any earlier state.
Show == seen' = IF History THEN seen \cup {Newest'} ELSE {Newest'}
Remember ==
  maps' = IF OldMaps THEN maps \cup {<<p, part[p]>> : p \in {q \in Parts : q >= Initial /\ part'[q] # part[q]}} ELSE maps
Wrote == Show /\ Remember

Blank(z) == [z EXCEPT !.stage = "absent", !.layout = <<0, 0>>, !.born = NoEntry, !.dies = NoEntry, !.sealed = -1,
                      !.epoch = IF Rule("epochs_go_on") THEN @ ELSE -1]
LedIn(led, epoch, layout) == IF Faults.tail > 0 THEN led \cup {<<epoch, layout>>} ELSE {}
NoView == [epoch |-> -1, layout |-> <<0, 0>>, open |-> FALSE, limit |-> -1]
NoBatch == [part |-> Nobody, layout |-> <<0, 0>>, incarnation |-> 0]

Init ==
  /\ topic = [count |-> Start, total |-> Start, version |-> 0]
  /\ part = [p \in Parts |->
       [stage |-> IF p < Start THEN "led" ELSE "absent", epoch |-> IF p < Start THEN 1 ELSE -1,
        layout |-> IF p < Start THEN <<Start, 0>> ELSE <<0, 0>>,
        born |-> IF p < Start /\ p >= Initial THEN <<p - Base(p), 0>> ELSE NoEntry, dies |-> NoEntry, sealed |-> -1,
        incarnation |-> IF p < Start THEN 1 ELSE 0]]
  /\ answered = 0..(Start - 1)
  /\ host = [p \in Parts |->
       [incarnation |-> IF p < Start THEN 1 ELSE 0, epoch |-> IF p < Start THEN 1 ELSE -1,
        layout |-> IF p < Start THEN <<Start, 0>> ELSE <<0, 0>>, log |-> <<>>, removed |-> <<0, -1>>,
        led |-> IF p < Start THEN LedIn({}, 1, <<Start, 0>>) ELSE {}, followed |-> -1]]
  /\ underway = {} /\ asked = 0
  /\ producer = [k \in Keys |-> [next |-> 1, batch |-> NoBatch, version |-> 0]]
  /\ strays = {} /\ accepted = {}
  /\ reader = [p \in Parts |-> [incarnation |-> IF p < Start THEN 1 ELSE 0, at |-> 0, done |-> 0, view |-> NoView]]
  /\ delivered = {} /\ broken = ""
  /\ seen = {Newest} /\ maps = {}
  /\ left = Faults

-----------------------------------------------------------------------------
(* Requests for resizes, and their refusal *)

Settled == \* every survivor's leader has answered for the topic znode's layout, and every marked partition is sealed
  /\ \A q \in Old : q \in answered /\ part[q].layout = Now
  /\ \A p \in Marked : part[p].sealed # -1

Ask ==
  /\ asked < Len(Plan)
  /\ New = {} /\ (Rule("one_resize") => Unled = {})
  /\ LET count == Plan[asked + 1] IN
     \/ /\ count > topic.count /\ topic.total = topic.count
        /\ topic' = [topic EXCEPT !.total = count]
     \/ /\ count < topic.count /\ count >= Initial
        /\ Rule("one_resize") => Settled
        /\ topic' = [topic EXCEPT !.count = count, !.version = @ + 1]
  /\ asked' = asked + 1
  /\ UNCHANGED <<part, answered, host, underway, clients, left>>
  /\ Wrote

-----------------------------------------------------------------------------
(* Growing *)

Recorded == \A p \in New : part[p].stage = "new"
\* Without "stored_layout" a partition counts as bumped when its epoch is above the epoch in the maps.
Above(q, entries) == part[q].epoch > Largest({-1} \cup {e[2] : e \in {x \in entries : x[1] = q}})
GrowBumped(q) ==
  IF Rule("stored_layout") THEN part[q].layout = Next2 ELSE Above(q, {part[p].born : p \in New})

RecordNew(p) ==
  /\ p \in New /\ part[p].stage = "absent"
  /\ LET a == IF Rule("old_ancestors") THEN AncestorBelow(p, topic.count) ELSE p - Base(p) IN
     part' = [part EXCEPT ![p].stage = "new", ![p].layout = Next2, ![p].incarnation = @ + 1,
                          ![p].born = <<a, IF Rule("map_with_bump") THEN Unknown ELSE part[a].epoch>>]
  /\ UNCHANGED <<topic, answered, host, underway, asked, clients, left>>
  /\ Wrote

BumpLoser(q) ==
  /\ New # {} /\ Recorded /\ q \in Old /\ ~GrowBumped(q)
  /\ part' = [p \in Parts |->
       IF p = q THEN [part[q] EXCEPT !.epoch = @ + 1, !.layout = Next2]
       ELSE IF Rule("map_with_bump") /\ p \in New /\ part[p].born[1] = q
            THEN [part[p] EXCEPT !.born = <<q, part[q].epoch>>]
       ELSE part[p]]
  /\ answered' = answered \ {q}
  /\ UNCHANGED <<topic, host, underway, asked, clients, left>>
  /\ Wrote

WriteCount ==
  /\ New # {} /\ Recorded /\ \A q \in Old : GrowBumped(q)
  /\ topic' = [topic EXCEPT !.count = topic.total, !.version = @ + 1]
  \* Requests that carry the topic's count must be sent again now.
  /\ answered' = IF Rule("pair") THEN answered ELSE {}
  /\ UNCHANGED <<part, host, underway, asked, clients, left>>
  /\ Wrote

ElectFirst(p) ==
  /\ p \in Unled /\ part[p].stage = "new"
  \* An election means that a registration has expired; without "only_answers" this counts as an answer.
  /\ \/ ~Rule("losers_first")
     \/ \A r \in Unled : part[r].born[1] \in answered
     \/ ~Rule("only_answers") /\ left.election < Faults.election
  /\ part' = [part EXCEPT ![p].stage = "led", ![p].epoch = @ + 1, ![p].layout = Now]
  /\ UNCHANGED <<topic, answered, host, underway, asked, clients, left>>
  /\ Wrote

-----------------------------------------------------------------------------
(* Shrinking *)

RecordMarked(p) ==
  /\ p \in Marked /\ part[p].dies = NoEntry
  /\ LET a == AncestorBelow(p, topic.count) IN part' = [part EXCEPT ![p].dies = <<a, part[a].epoch>>]
  /\ UNCHANGED <<topic, answered, host, underway, asked, clients, left>>
  /\ Wrote

AllRecorded == \A p \in Marked : part[p].dies # NoEntry

Seal(p) ==
  /\ p \in Marked /\ AllRecorded /\ part[p].sealed = -1 /\ part[p].layout # Now /\ Rule("seal")
  /\ part' = [part EXCEPT ![p].epoch = @ + 1, ![p].layout = Now]
  /\ answered' = answered \ {p}
  /\ UNCHANGED <<topic, host, underway, asked, clients, left>>
  /\ Wrote

\* The leader's answer waits until all in-sync replicas have followed. Then no replica has a record that only it took.
AllFollow(ps) ==
  IF Faults.tail > 0 THEN [p \in Parts |-> IF p \in ps THEN [host[p] EXCEPT !.followed = host[p].epoch] ELSE host[p]] ELSE host

StoreSeal(p) ==
  /\ p \in Marked /\ AllRecorded /\ part[p].sealed = -1
  /\ Rule("seal") => part[p].layout = Now /\ p \in answered
  \* A high watermark that lags behind the log end gives an offset that is too low.
  /\ \E end \in IF Rule("seal_at_end") THEN {Len(host[p].log)} ELSE 0..Len(host[p].log) :
       part' = [part EXCEPT ![p].sealed = end]
  /\ host' = IF Rule("followed") THEN AllFollow({p}) ELSE host
  /\ UNCHANGED <<topic, answered, underway, asked, clients, left>>
  /\ Wrote

ShrinkBumped(q) ==
  IF Rule("stored_layout") THEN part[q].layout = Now ELSE Above(q, {part[p].dies : p \in Marked})

BumpSurvivor(q) ==
  /\ Marked # {} /\ AllRecorded /\ q \in Old /\ ~ShrinkBumped(q)
  /\ Rule("losers_first") => \A p \in Marked : part[p].sealed # -1
  /\ part' = [p \in Parts |->
       IF p = q THEN [part[q] EXCEPT !.epoch = @ + 1, !.layout = Now]
       ELSE IF /\ Rule("map_with_bump") /\ p \in Marked /\ part[p].dies[1] = q
               /\ Rule("own_maps") => p < part[q].layout[1]        \* marked by this shrink
            THEN [part[p] EXCEPT !.dies = <<q, part[q].epoch>>]
       ELSE part[p]]
  /\ answered' = answered \ {q}
  /\ UNCHANGED <<topic, host, underway, asked, clients, left>>
  /\ Wrote

(* The highest marked partition is removed once the group has read it *)
Highest == topic.total - 1
Position(p, incarnation) ==
  IF reader[p].incarnation = incarnation \/ ~Rule("commit_incarnation")
  THEN (IF Rule("commit_first") THEN reader[p].done ELSE reader[p].at) ELSE 0

Leave ==
  /\ Highest \in Marked /\ part[Highest].stage = "led" /\ part[Highest].sealed # -1
  /\ Position(Highest, part[Highest].incarnation) >= part[Highest].sealed
  /\ Rule("removal_waits") => Settled
  /\ part' = [part EXCEPT ![Highest].stage = "leaving"]
  /\ UNCHANGED <<topic, answered, host, underway, asked, clients, left>>
  /\ Wrote

-----------------------------------------------------------------------------
(* Controller requests: LeaderAndIsr and StopReplica. A sent request may arrive at any later time, or never. *)

LeadOrder(p) ==
  [what |-> "lead", part |-> p, incarnation |-> part[p].incarnation, epoch |-> part[p].epoch,
   layout |-> IF Rule("pair") THEN part[p].layout ELSE Now]
StopOrder(p) ==
  [what |-> "stop", part |-> p, incarnation |-> part[p].incarnation, epoch |-> part[p].epoch, layout |-> <<0, 0>>]

Hosted(h) == h.incarnation > 0
\* The request is older than the StopReplica that deleted the replica: <<incarnation, leader epoch>>.
Before(o, deleted) == o.incarnation < deleted[1] \/ (o.incarnation = deleted[1] /\ o.epoch < deleted[2])
Obey(h, o) ==
  LET known == Rule("order_incarnation") IN
  IF o.what = "lead"
  THEN IF \/ known /\ o.incarnation < h.incarnation
          \/ known /\ Rule("remember_removed") /\ Before(o, h.removed)
          \/ Rule("order_epoch") /\ Hosted(h) /\ (known => o.incarnation = h.incarnation) /\ o.epoch < h.epoch
       THEN h
       ELSE [h EXCEPT !.incarnation = o.incarnation, !.epoch = o.epoch, !.layout = o.layout,
                      !.log = IF h.incarnation = o.incarnation THEN @ ELSE <<>>,
                      !.led = LedIn(IF h.incarnation = o.incarnation THEN @ ELSE {}, o.epoch, o.layout),
                      !.followed = IF h.incarnation = o.incarnation THEN @ ELSE -1]
  ELSE IF \/ known /\ o.incarnation # h.incarnation
          \/ Rule("order_epoch") /\ o.epoch < h.epoch
       THEN h
       ELSE [incarnation |-> 0, epoch |-> -1, layout |-> <<0, 0>>, log |-> <<>>, removed |-> <<o.incarnation, o.epoch>>,
             led |-> {}, followed |-> -1]
Obeyed(o) ==
  [p \in Parts |->
     IF p = o.part THEN Obey(host[p], o)
     \* Without "per_partition" a broker keeps one layout for all partitions of the topic that it leads.
     ELSE IF ~Rule("per_partition") /\ o.what = "lead" /\ Hosted(host[p]) THEN [host[p] EXCEPT !.layout = o.layout]
     ELSE host[p]]

Late(o) ==
  /\ left.late > 0 /\ o \notin underway
  /\ underway' = underway \cup {o} /\ left' = [left EXCEPT !.late = @ - 1]
  /\ UNCHANGED <<topic, part, answered, host, asked, clients, past>>

Order(p) ==
  /\ p \notin answered
  /\ part[p].stage = "led" \/ (part[p].stage = "leaving" /\ ~Rule("leaving_is_not_led"))
  /\ \/ Late(LeadOrder(p))
     \/ /\ host' = Obeyed(LeadOrder(p)) /\ answered' = answered \cup {p}
        /\ UNCHANGED <<topic, part, underway, asked, clients, past, left>>

Stop(p) ==
  /\ part[p].stage = "leaving" /\ host[p].incarnation = part[p].incarnation
  /\ \/ Late(StopOrder(p))
     \/ /\ host' = Obeyed(StopOrder(p)) /\ answered' = answered \ {p}
        /\ UNCHANGED <<topic, part, underway, asked, clients, past, left>>

Forget ==
  /\ Highest \in Marked /\ part[Highest].stage = "leaving" /\ host[Highest].incarnation # part[Highest].incarnation
  /\ topic' = [topic EXCEPT !.total = Highest]
  /\ part' = IF Rule("removal_in_one_write") THEN [part EXCEPT ![Highest] = Blank(@)] ELSE part
  /\ answered' = answered \ {Highest}
  /\ UNCHANGED <<host, underway, asked, clients, left>>
  /\ Wrote
ForgetRest(p) ==      \* the second write, if a removal is not one multi
  /\ p >= topic.total /\ part[p].stage # "absent"
  /\ part' = [part EXCEPT ![p] = Blank(@)]
  /\ UNCHANGED <<topic, answered, host, underway, asked, clients, left>>
  /\ Wrote

Arrive == \E o \in underway :
  /\ underway' = underway \ {o} /\ host' = Obeyed(o)
  /\ UNCHANGED <<topic, part, answered, asked, clients, past, left>>

-----------------------------------------------------------------------------
(* Faults *)

NewController ==
  /\ left.controller > 0 /\ left' = [left EXCEPT !.controller = @ - 1]
  /\ answered' = {}
  /\ UNCHANGED <<topic, part, host, underway, asked, clients, past>>

\* Until the request arrives, the old leader continues to serve, with or without a registration.
Election(p) ==
  /\ left.election > 0 /\ left' = [left EXCEPT !.election = @ - 1]
  /\ part[p].stage = "led" /\ p < topic.total
  /\ part' = [part EXCEPT ![p].epoch = @ + 1]
  /\ answered' = answered \ {p}
  /\ UNCHANGED <<topic, host, underway, asked, clients>>
  /\ Wrote

\* The new leader lacks the last record.
UncleanElection(p) ==
  /\ left.unclean > 0 /\ left' = [left EXCEPT !.unclean = @ - 1]
  /\ part[p].stage = "led" /\ p < topic.total /\ host[p].incarnation = part[p].incarnation /\ host[p].log # <<>>
  /\ LET end == Len(host[p].log) - 1 IN
     /\ part' = [part EXCEPT ![p].epoch = @ + 1, ![p].sealed = IF Rule("lower_seal") /\ @ > end THEN end ELSE @]
     /\ host' = [host EXCEPT ![p].log = SubSeq(@, 1, end), ![p].epoch = part'[p].epoch, ![p].layout = part[p].layout]
     /\ reader' = [reader EXCEPT ![p].at = Smallest({@, end}), ![p].done = Smallest({@, end})]
  /\ answered' = answered \ {p}
  /\ UNCHANGED <<topic, underway, asked, producer, strays, accepted, delivered, broken>>
  /\ Wrote

ReaderCrash(p) ==
  /\ left.reader > 0 /\ left' = [left EXCEPT !.reader = @ - 1]
  /\ reader[p].view # NoView \/ reader[p].at # reader[p].done
  /\ reader' = [reader EXCEPT ![p].at = reader[p].done, ![p].view = NoView]
  /\ UNCHANGED <<topic, part, answered, host, underway, asked, producer, strays, accepted, delivered, broken, past>>

-----------------------------------------------------------------------------
(* The producer waits for the result of at most one record per key *)

servers == <<topic, part, answered, underway, asked, past>>
Duplicate(k, s, p) == \E i \in DOMAIN host[p].log : host[p].log[i].key = k /\ host[p].log[i].number = s
Appended(k, s, p, layout) ==
  [host EXCEPT ![p].log = Append(@, [epoch |-> host[p].epoch, key |-> k, number |-> s, layout |-> layout])]
Takes(p, layout) == Hosted(host[p]) /\ Same(host[p].layout, layout)
\* The version of the newest layout that has placed a record, if the producer never goes back to an older layout.
Version(m) == IF Rule("never_back") THEN m.layout[2] ELSE 0
Resolved(k, s, version) == producer' = [producer EXCEPT ![k] = [next |-> s + 1, batch |-> NoBatch, version |-> version]]
Unresolved(k, s, p, m) ==
  producer' = [producer EXCEPT ![k] = IF Rule("hold_key")
    THEN [next |-> s, batch |-> [part |-> p, layout |-> m.layout, incarnation |-> m.incarnation[p]], version |-> Version(m)]
    ELSE [next |-> s + 1, batch |-> NoBatch, version |-> Version(m)]]

Send(k) == \E m \in seen :
  LET s == producer[k].next  p == Place(k, m.layout[1]) IN
  /\ producer[k].batch = NoBatch /\ s <= Records /\ Version(m) >= producer[k].version
  /\ \/ /\ Hosted(host[p]) /\ Duplicate(k, s, p)     \* it was refused, and a later copy was appended
        /\ Resolved(k, s, Version(m)) /\ accepted' = accepted \cup {<<k, s>>}
        /\ UNCHANGED <<host, strays, left>>
     \/ /\ Takes(p, m.layout) /\ ~Duplicate(k, s, p)
        /\ host' = Appended(k, s, p, m.layout)
        /\ Resolved(k, s, Version(m)) /\ accepted' = accepted \cup {<<k, s>>}
        /\ UNCHANGED <<strays, left>>
     \/ /\ left.lost > 0 /\ left' = [left EXCEPT !.lost = @ - 1]
        /\ Unresolved(k, s, p, m)
        /\ \/ /\ "answer" \in Losses /\ Takes(p, m.layout) /\ ~Duplicate(k, s, p)
              /\ host' = Appended(k, s, p, m.layout) /\ UNCHANGED strays
           \/ "request" \in Losses /\ UNCHANGED <<host, strays>>
           \/ /\ "delay" \in Losses /\ UNCHANGED host
              /\ strays' = strays \cup {[key |-> k, number |-> s, part |-> p, layout |-> m.layout]}
        /\ UNCHANGED accepted
  /\ UNCHANGED <<servers, reader, delivered, broken>>

\* The retry of a batch whose result is unknown.
Retry(k) ==
  LET s == producer[k].next
      batch == producer[k].batch
      p == batch.part
      gone == part[p].stage = "absent" \/ (Rule("fail_gone") /\ part[p].incarnation # batch.incarnation)
      here == Hosted(host[p])
      known == here /\ Duplicate(k, s, p)
  IN
  /\ batch # NoBatch
  /\ \E layout \in IF Rule("retry_layout") THEN {batch.layout} ELSE {m.layout : m \in seen} :
     \/ /\ ~gone /\ known /\ (Rule("duplicate_first") \/ Same(host[p].layout, layout))
        /\ Resolved(k, s, producer[k].version) /\ accepted' = accepted \cup {<<k, s>>} /\ UNCHANGED host
     \/ /\ ~gone /\ ~known /\ Takes(p, layout)
        /\ host' = Appended(k, s, p, layout)
        /\ Resolved(k, s, producer[k].version) /\ accepted' = accepted \cup {<<k, s>>}
     \* The leader refuses the batch once all in-sync replicas have followed. If the producer knows no newer layout, the
     \* leader may have the older one, and append a late copy later.
     \/ /\ ~gone /\ here /\ ~Same(host[p].layout, layout) /\ (~known \/ ~Rule("duplicate_first"))
        /\ Rule("final_refusal") => \E m \in seen : m.layout[2] > batch.layout[2]
        /\ producer' = [producer EXCEPT ![k].batch = NoBatch,
                          ![k].version = IF Rule("final_refusal") /\ Rule("never_back") THEN batch.layout[2] + 1 ELSE @]
        /\ host' = IF Rule("followed_refusal") THEN AllFollow({p}) ELSE host
        /\ UNCHANGED accepted
     \/ /\ gone                                              \* the result stays unknown: the record fails
        /\ producer' = [producer EXCEPT ![k].next = IF Rule("fail_gone") THEN s + 1 ELSE s, ![k].batch = NoBatch]
        /\ UNCHANGED <<host, accepted>>
  /\ UNCHANGED <<servers, strays, reader, delivered, broken, left>>

StrayArrives == \E r \in strays :
  /\ strays' = strays \ {r}
  /\ host' = IF Takes(r.part, r.layout) /\ ~Duplicate(r.key, r.number, r.part)
             THEN Appended(r.key, r.number, r.part, r.layout) ELSE host
  /\ UNCHANGED <<servers, producer, accepted, reader, delivered, broken, left>>

\* The new leader led before and was cut off. It stayed in the ISR and has not followed the leaders after it. It has a
\* record that no other replica has. Uncommitted records of those leaders are gone.
TailElection(p) ==
  /\ left.tail > 0 /\ left' = [left EXCEPT !.tail = @ - 1]
  /\ part[p].stage = "led" /\ p < topic.total /\ host[p].incarnation = part[p].incarnation
  /\ part' = [part EXCEPT ![p].epoch = @ + 1]
  /\ \E r \in strays, led \in host[p].led :
       LET epoch == led[1]
           kept == SelectSeq(host[p].log, LAMBDA a : a.epoch <= epoch)
           gone == {host[p].log[i] : i \in (Len(kept) + 1)..Len(host[p].log)} IN
       /\ r.part = p /\ Same(r.layout, led[2]) /\ epoch >= host[p].followed
       /\ \A i \in DOMAIN kept : kept[i].key # r.key \/ kept[i].number # r.number
       /\ \A a \in gone : <<a.key, a.number>> \notin accepted
       /\ reader[p].at <= Len(kept)
       /\ host' = [host EXCEPT ![p].log = Append(kept, [epoch |-> epoch, key |-> r.key, number |-> r.number, layout |-> r.layout]),
                               ![p].epoch = part'[p].epoch, ![p].layout = part[p].layout,
                               ![p].led = LedIn(@, part'[p].epoch, part[p].layout)]
       /\ strays' = strays \ {r}
  /\ answered' = answered \ {p}
  /\ UNCHANGED <<topic, underway, asked, producer, accepted, reader, delivered, broken>>
  /\ Wrote

-----------------------------------------------------------------------------
(* The readers: in the worst case every partition has another owner *)

\* y: the partition znodes that the answering broker of 25301 has; m: the reader's metadata.
Fits(q, m, y) == Rule("map_incarnation") => y[q].incarnation = m.incarnation[q]
EndOfEpoch(a, epoch) == Cardinality({i \in DOMAIN host[a].log : host[a].log[i].epoch <= epoch})
Born(q, m, y) ==
  \/ q < Initial \/ ~Rule("creation_barrier")
  \/ LET a == y[q].born[1]  epoch == y[q].born[2] IN
     /\ Fits(q, m, y) /\ a # Nobody /\ epoch # Unknown
     /\ host[a].epoch > epoch \/ ~Rule("finished_epoch")
     /\ Position(a, m.incarnation[a]) >= EndOfEpoch(a, epoch)
\* The partitions whose leaders are asked for the end of an epoch.
Asked(p, y) ==
  LET known == {y[q].born : q \in {r \in {p} \cup Ancestors(p) : r >= Initial}} IN
  {e[1] : e \in {b \in known : b[1] # Nobody /\ b[2] # Unknown /\ host[b[1]].epoch > b[2]}}
MarkedBelow(p, m) == {q \in Parts : m.layout[1] <= q /\ q < m.total /\ p \in Ancestors(q)}
Limit(p, m, y) ==
  LET below == MarkedBelow(p, m)
      mine == {q \in below : y[q].dies[1] = p}
      waits == IF Rule("all_marked") THEN below ELSE mine
      reached(q) == y[q].sealed # -1 /\ Position(q, m.incarnation[q]) >= y[q].sealed
  IN IF ~Rule("deletion_barrier") \/ mine = {} \/ \A q \in waits : reached(q) THEN Endless
     ELSE Smallest({y[q].dies[2] : q \in mine})
CanLook(p, m, y) ==
  /\ p < m.total /\ m.incarnation[p] > 0
  /\ Rule("deletion_barrier") => \A q \in MarkedBelow(p, m) : Fits(q, m, y) /\ y[q].dies # NoEntry
View(p, m, y) ==
  [epoch |-> m.epoch[p], layout |-> m.layout, limit |-> Limit(p, m, y),
   open |-> \A q \in {p} \cup (IF Rule("whole_chain") THEN Ancestors(p) ELSE {}) : Born(q, m, y)]
Znodes == {part} \cup {[part EXCEPT ![x[1]] = x[2]] : x \in maps}

\* The partitions that have records of the model's keys in some layout. The others have nothing to read.
Homes == {Place(k, count) : k \in Keys, count \in Initial..Ids}

Look(p) == \E m \in seen, y \in Znodes :
  /\ p \in Homes /\ CanLook(p, m, y)
  /\ LET fresh == m.incarnation[p] # reader[p].incarnation
         offset == IF Rule("commit_incarnation") THEN 0 ELSE reader[p].done IN
     /\ fresh => m.incarnation[p] > reader[p].incarnation
     /\ reader' = [reader EXCEPT ![p] =
          IF fresh THEN [incarnation |-> m.incarnation[p], at |-> offset, done |-> offset, view |-> View(p, m, y)]
          ELSE [@ EXCEPT !.view = View(p, m, y)]]
  /\ host' = IF Rule("followed_end") THEN AllFollow(Asked(p, y)) ELSE host
  /\ reader' # reader
  /\ UNCHANGED <<servers, producer, strays, accepted, delivered, broken, left>>

MayDeliver(p, view) ==
  LET i == reader[p].at + 1  r == host[p].log[i] IN
  /\ host[p].incarnation = reader[p].incarnation /\ i <= Len(host[p].log)
  /\ view.open
  /\ r.epoch <= view.epoch \/ ~Rule("batch_epoch")
  /\ r.epoch <= view.limit
  \* The leader compares layouts, except for a sealed partition. Batches that it sent under the reader's layout may still be here.
  /\ \/ Same(view.layout, host[p].layout) \/ p >= host[p].layout[1]
     \/ r.layout[2] <= view.layout[2] /\ view.layout[2] <= host[p].layout[2]
     \/ ~Rule("parked_fetch")

Deliver(p) ==
  LET i == reader[p].at + 1  r == host[p].log[i] IN
  /\ MayDeliver(p, reader[p].view)
  /\ reader' = [reader EXCEPT ![p].at = i]
  /\ delivered' = delivered \cup {<<r.key, r.number, p, host[p].incarnation>>}
  /\ broken' =
       IF \E q \in Parts \ {p} : \E j \in DOMAIN host[q].log :
            /\ host[q].log[j].key = r.key /\ host[q].log[j].number < r.number
            /\ reader[q].incarnation # host[q].incarnation \/ j > reader[q].done
       THEN "an older record is not done yet"
       ELSE IF \E x \in delivered : x[1] = r.key /\ x[2] > r.number /\ <<x[3], x[4]>> # <<p, host[p].incarnation>>
       THEN "a newer record came before"
       ELSE broken
  /\ UNCHANGED <<servers, host, producer, strays, accepted, left>>

\* The flush callback has returned, and the offset is committed.
Commit(p) ==
  /\ reader[p].done < reader[p].at
  /\ reader' = [reader EXCEPT ![p].done = reader[p].at]
  /\ UNCHANGED <<servers, host, producer, strays, accepted, delivered, broken, left>>

-----------------------------------------------------------------------------
Controller ==
  \/ Ask \/ WriteCount \/ Leave \/ Forget
  \/ \E p \in Parts :
       \/ RecordNew(p) \/ BumpLoser(p) \/ ElectFirst(p)
       \/ RecordMarked(p) \/ Seal(p) \/ StoreSeal(p) \/ BumpSurvivor(p)
       \/ Order(p) \/ Stop(p) \/ ForgetRest(p)
Clients ==
  \/ \E k \in Keys : Send(k) \/ Retry(k)
  \/ \E p \in Parts : Look(p) \/ Deliver(p) \/ Commit(p)
Bad ==
  \/ NewController \/ Arrive \/ StrayArrives
  \/ \E p \in Parts : Election(p) \/ UncleanElection(p) \/ TailElection(p) \/ ReaderCrash(p)
Next == Controller \/ Clients \/ Bad

Spec == Init /\ [][Next]_vars
\* A step that stays possible is taken in the end. Faults need not happen.
Fair ==
  /\ Spec
  /\ WF_vars(Controller)
  /\ \A k \in Keys : WF_vars(Send(k)) /\ WF_vars(Retry(k))
  /\ \A p \in Parts : WF_vars(Look(p)) /\ WF_vars(Deliver(p)) /\ WF_vars(Commit(p))

-----------------------------------------------------------------------------
(* Properties *)

Promise == broken = ""
LogSorted == \A p \in Parts : \A i, j \in DOMAIN host[p].log :
  i < j /\ host[p].log[i].key = host[p].log[j].key => host[p].log[i].number < host[p].log[j].number
Sealed == \A p \in Marked :
  part[p].stage = "led" /\ part[p].sealed # -1 /\ host[p].incarnation = part[p].incarnation => Len(host[p].log) = part[p].sealed
Routing == \A p \in Parts : \A i, j \in DOMAIN host[p].log :
  LET a == host[p].log[i]  b == host[p].log[j] IN
  Place(a.key, a.layout[1]) = p /\ (a.epoch = b.epoch => a.layout = b.layout)
WasDelivered(a) == \E x \in delivered : x[1] = a[1] /\ x[2] = a[2]
NoLoss == \A a \in accepted :
  \/ WasDelivered(a)
  \/ \E p \in Parts : /\ Led(p) /\ host[p].incarnation = part[p].incarnation
                      /\ \E i \in DOMAIN host[p].log : host[p].log[i].key = a[1] /\ host[p].log[i].number = a[2]
NoDuplicate ==
  /\ \A p, q \in Parts : \A i \in DOMAIN host[p].log, j \in DOMAIN host[q].log :
       LET a == host[p].log[i]  b == host[q].log[j] IN a.key = b.key /\ a.number = b.number => p = q /\ i = j
  /\ \A x, y \in delivered : x[1] = y[1] /\ x[2] = y[2] => x = y

PlanDone == asked = Len(Plan) /\ topic.count = Plan[Len(Plan)] /\ topic.total = topic.count
AllSent == \A k \in Keys : producer[k].next > Records /\ producer[k].batch = NoBatch
AllDelivered == \A a \in accepted : WasDelivered(a)
\* No step is possible, with the newest metadata either.
AtRest ==
  /\ \A p \in Parts : reader[p].at = reader[p].done
  /\ ~ENABLED Controller
  /\ \A p \in Homes : /\ reader[p].incarnation = Newest.incarnation[p] \/ p >= Newest.total
                      /\ ~(CanLook(p, Newest, part) /\ MayDeliver(p, View(p, Newest, part)))
  /\ \A k \in Keys : ~ENABLED Send(k) /\ ~ENABLED Retry(k)
AllRead == \A p \in Parts : part[p].stage = "led" => reader[p].at = Len(host[p].log)
\* A record that an unclean election lost cannot be delivered.
NoHang == AtRest => PlanDone /\ AllSent /\ AllRead /\ (Faults.unclean = 0 => AllDelivered)

Arrives == <>[](PlanDone /\ AllSent /\ AllDelivered)
=============================================================================
