------------------------------- MODULE Features -------------------------------
(***************************************************************************)
(* Feature levels are finalized while brokers start, stop and start again  *)
(* with another release's ranges, and controllers update the levels at the *)
(* same time (KIP-584). One feature: several are independent here.         *)
(* README.md lists the omissions.                                          *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Brokers,
  Controllers,
  Ranges,     \* <<min, max>> of the releases that a broker may be started with
  Starts,     \* the number of broker starts
  Terms,      \* the number of controller elections
  Updates,    \* the number of updates that controllers check
  Off         \* the rules that are switched off

VARIABLES
  features,   \* /features: min and max level, 0 for not finalized, and its zkVersion
  lock,       \* zkVersion of /brokers/registrations
  epoch,      \* controller epoch
  broker,     \* by broker: state, range, the version of the lock that it read
  controller, \* by controller: state, the epoch of its term, the features, lock and ranges that it read
  left,       \* the starts and updates that may still happen
  lost        \* a controller wrote an update although it did not know the previous one

vars == <<features, lock, epoch, broker, controller, left, lost>>

Rule(name) == name \notin Off
Least(S) == CHOOSE x \in S : \A y \in S : x <= y
Greatest(S) == CHOOSE x \in S : \A y \in S : x >= y

Supports(range, level) == range[1] <= level /\ level <= range[2]
Fits(range) == features.max = 0 \/ Supports(range, features.max)
Registered == {b \in Brokers : broker[b].state = "registered"}
Levels == UNION {r[1]..r[2] : r \in Ranges}

-----------------------------------------------------------------------------
(* A broker: start, read the lock, look at the features, register *)

Start(b) ==
  /\ broker[b].state = "off" /\ left.starts > 0
  /\ \E range \in Ranges :
       broker' = [broker EXCEPT ![b] = [state |-> "started", range |-> range, lock |-> lock]]
  /\ left' = [left EXCEPT !.starts = @ - 1]
  /\ UNCHANGED <<features, lock, epoch, controller, lost>>

Look(b) ==
  /\ broker[b].state = "started"
  /\ broker' = [broker EXCEPT ![b].state = IF Fits(broker[b].range) \/ ~Rule("look") THEN "looked" ELSE "off"]
  /\ UNCHANGED <<features, lock, epoch, controller, left, lost>>

\* One multi: it sets the lock at the version that the broker read, and creates the registration.
Register(b) ==
  /\ broker[b].state = "looked"
  /\ IF lock = broker[b].lock \/ ~Rule("broker_checks")
     THEN /\ broker' = [broker EXCEPT ![b].state = "registered"]
          /\ lock' = IF Rule("broker_sets") THEN lock + 1 ELSE lock
     ELSE /\ broker' = [broker EXCEPT ![b].state = "started", ![b].lock = lock]
          /\ lock' = lock
  /\ UNCHANGED <<features, epoch, controller, left, lost>>

\* The broker stops, crashes, or its session ends. Then it starts as above, with any range.
Stop(b) ==
  /\ broker[b].state # "off"
  /\ broker' = [broker EXCEPT ![b].state = "off"]
  /\ UNCHANGED <<features, lock, epoch, controller, left, lost>>

-----------------------------------------------------------------------------
(* A controller: read the features as its term begins or a watch fires, read the lock, look at the brokers, write *)

Elect(c) ==
  /\ epoch < Terms
  /\ epoch' = epoch + 1
  /\ controller' = [controller EXCEPT ![c] =
       [state |-> "office", epoch |-> epoch + 1, known |-> features, lock |-> 0, brokers |-> {}]]
  /\ UNCHANGED <<features, lock, broker, left, lost>>

ReadFeatures(c) ==
  /\ controller[c].state = "office" /\ controller[c].known # features
  /\ controller' = [controller EXCEPT ![c].known = features]
  /\ UNCHANGED <<features, lock, epoch, broker, left, lost>>

ReadLock(c) ==
  /\ controller[c].state = "office" /\ left.updates > 0
  /\ controller' = [controller EXCEPT ![c].state = "locked", ![c].lock = lock]
  /\ left' = [left EXCEPT !.updates = @ - 1]
  /\ UNCHANGED <<features, lock, epoch, broker, lost>>

LookAtBrokers(c) ==
  /\ controller[c].state = "locked"
  /\ controller' = [controller EXCEPT ![c].state = "looked", ![c].brokers = {broker[b].range : b \in Registered}]
  /\ UNCHANGED <<features, lock, epoch, broker, left, lost>>

Allowed(c, level) ==
  \/ level = 0
  \/ /\ level >= controller[c].known.min \/ controller[c].known.max = 0
     /\ controller[c].brokers # {}
     /\ Rule("judge") => \A range \in controller[c].brokers : Supports(range, level)

\* The lowest minimum of the brokers, if it is above the current minimum. Each broker supports the level.
Minimum(c, level) ==
  LET before == IF controller[c].known.max = 0 THEN 1 ELSE controller[c].known.min
      lowest == IF controller[c].brokers = {} THEN before ELSE Least({range[1] : range \in controller[c].brokers})
  IN IF level = 0 THEN 0 ELSE Greatest({before, lowest})

\* One multi: it checks the controller epoch, and sets the lock and the features at the versions that the controller read.
Write(c) ==
  /\ controller[c].state = "looked"
  /\ \E level \in Levels \cup {0} :
       /\ Allowed(c, level)
       /\ IF /\ epoch = controller[c].epoch \/ ~Rule("epoch")
             /\ lock = controller[c].lock \/ ~Rule("controller_checks")
             /\ features.version = controller[c].known.version \/ ~Rule("version")
          THEN /\ features' = [min |-> Minimum(c, level), max |-> level, version |-> features.version + 1]
               /\ lock' = IF Rule("controller_sets") THEN lock + 1 ELSE lock
               /\ lost' = (lost \/ features.version # controller[c].known.version)
               /\ controller' = [controller EXCEPT ![c].state = "office", ![c].known = features']
          ELSE /\ controller' = [controller EXCEPT ![c].state = "office"]
               /\ UNCHANGED <<features, lock, lost>>
  /\ UNCHANGED <<epoch, broker, left>>

-----------------------------------------------------------------------------

Init ==
  /\ features = [min |-> 0, max |-> 0, version |-> 0]
  /\ lock = 0 /\ epoch = 0
  /\ broker = [b \in Brokers |-> [state |-> "off", range |-> <<1, 1>>, lock |-> 0]]
  /\ controller = [c \in Controllers |->
       [state |-> "standby", epoch |-> 0, known |-> features, lock |-> 0, brokers |-> {}]]
  /\ left = [starts |-> Starts, updates |-> Updates]
  /\ lost = FALSE

Next ==
  \/ \E b \in Brokers : Start(b) \/ Look(b) \/ Register(b) \/ Stop(b)
  \/ \E c \in Controllers : Elect(c) \/ ReadFeatures(c) \/ ReadLock(c) \/ LookAtBrokers(c) \/ Write(c)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

\* No registered broker is ever incompatible with the finalized level.
Compatible == \A b \in Registered : Fits(broker[b].range)

\* The minimum level is never above the finalized level.
Ordered == features.max = 0 \/ (1 <= features.min /\ features.min <= features.max)

\* No update overwrites an update that its controller did not know.
NoLostUpdate == ~lost
=============================================================================
