-- A table in memory: filled, indexed, queried, changed, joined.
create table t(id integer primary key, name text, score real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
insert into t select i, 'user-' || (i % 97), i * 0.5 from n;
create index by_name on t(name);
select name, count(*), sum(score) from t group by name order by 3 desc limit 3;
update t set score = score + 1 where id % 3 = 0;
delete from t where id % 5 = 0;
select count(*), avg(length(name)) from t join (select name as m, max(score) as s from t group by name) on name = m and score < s;
